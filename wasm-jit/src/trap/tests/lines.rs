//! DWARF built for the test: a function of ten bytes, with another one inlined in the middle.

use addr2line::gimli::write::{
    Address, AttributeValue, DwarfUnit, EndianVec, LineProgram, LineString, Sections as Writing,
};
use addr2line::gimli::{self, DwLang, Encoding, Format, LineEncoding, LittleEndian};

use crate::code::sections::Sections;
use crate::trap::lines::Lines;

/// Start of the function, from the start of the code section's contents.
const START: u64 = 20;

fn dwarf() -> Writing<EndianVec<LittleEndian>> {
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 4 };
    let string = |text: &str| LineString::String(text.as_bytes().to_vec());
    let mut unit = DwarfUnit::new(encoding);
    let mut program =
        LineProgram::new(encoding, LineEncoding::default(), string("/src"), None, string("outer.c"), None);
    let folder = program.default_directory();
    let outer_c = program.add_file(string("outer.c"), folder, None);
    let inner_h = program.add_file(string("inner.h"), folder, None);
    program.begin_sequence(Some(Address::Constant(START)));
    for (offset, file, line) in [(0, outer_c, 10), (4, inner_h, 3), (8, outer_c, 12)] {
        program.row().address_offset = offset;
        program.row().file = file;
        program.row().line = line;
        program.row().column = 7;
        program.generate_row();
    }
    program.end_sequence(10);
    unit.unit.line_program = program;

    let root = unit.unit.root();
    let name = |unit: &mut DwarfUnit, text: &str| AttributeValue::StringRef(unit.strings.add(text));
    let range = |entry: &mut gimli::write::DebuggingInformationEntry, start, length| {
        entry.set(gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(start)));
        entry.set(gimli::DW_AT_high_pc, AttributeValue::Udata(length));
    };
    let file = name(&mut unit, "outer.c");
    let folder = name(&mut unit, "/src");
    let entry = unit.unit.get_mut(root);
    entry.set(gimli::DW_AT_name, file);
    entry.set(gimli::DW_AT_comp_dir, folder);
    entry.set(gimli::DW_AT_language, AttributeValue::Language(DwLang(0x0c)));
    entry.set(gimli::DW_AT_stmt_list, AttributeValue::LineProgramRef);
    range(entry, START, 10);

    let inlined_name = name(&mut unit, "_ZN3foo3barEv");
    let inlined = unit.unit.add(root, gimli::DW_TAG_subprogram);
    unit.unit.get_mut(inlined).set(gimli::DW_AT_linkage_name, inlined_name);
    let outer_name = name(&mut unit, "outer");
    let outer = unit.unit.add(root, gimli::DW_TAG_subprogram);
    let entry = unit.unit.get_mut(outer);
    entry.set(gimli::DW_AT_name, outer_name);
    range(entry, START, 10);
    let call = unit.unit.add(outer, gimli::DW_TAG_inlined_subroutine);
    let entry = unit.unit.get_mut(call);
    entry.set(gimli::DW_AT_abstract_origin, AttributeValue::UnitRef(inlined));
    entry.set(gimli::DW_AT_call_file, AttributeValue::FileIndex(Some(outer_c)));
    entry.set(gimli::DW_AT_call_line, AttributeValue::Udata(11));
    range(entry, START + 4, 4);

    let mut sections = Writing::new(EndianVec::new(LittleEndian));
    unit.write(&mut sections).unwrap();
    sections
}

#[test]
fn an_offset_has_the_lines_of_its_function_and_of_what_was_inlined() {
    let written = dwarf();
    let mut sections = Sections { code_start: 1000, ..Sections::default() };
    let add = |id: gimli::SectionId, data: &_| {
        let data: &EndianVec<LittleEndian> = data;
        sections.dwarf.insert(id.name(), Box::leak(data.slice().to_vec().into_boxed_slice()));
        Ok::<_, ()>(())
    };
    written.for_each(add).unwrap();
    let lines = Lines::of(&sections).unwrap();
    let check = |offset: u64, expected: &[(&str, &str)]| {
        let symbols = lines.symbols(1000 + START + offset);
        let found: Vec<_> =
            symbols.iter().map(|symbol| (symbol.name().unwrap_or("?"), symbol.to_string())).collect();
        let expected: Vec<_> = expected.iter().map(|(name, at)| (*name, (*at).to_owned())).collect();
        assert_eq!(found, expected, "offset {offset}");
    };
    check(0, &[("outer", "/src/outer.c:10:7")]);
    check(3, &[("outer", "/src/outer.c:10:7")]);
    check(4, &[("foo::bar()", "/src/inner.h:3:7"), ("outer", "/src/outer.c:11")]);
    check(9, &[("outer", "/src/outer.c:12:7")]);
    check(10, &[]);
    assert!(lines.symbols(999).is_empty(), "before the code section");
}

#[test]
fn truncated_dwarf_gives_no_lines() {
    let written = dwarf();
    for length in 0..60 {
        let mut sections = Sections { code_start: 0, ..Sections::default() };
        let add = |id: gimli::SectionId, data: &_| {
            let data: &EndianVec<LittleEndian> = data;
            let data = &data.slice()[..data.slice().len().min(length)];
            sections.dwarf.insert(id.name(), Box::leak(data.to_vec().into_boxed_slice()));
            Ok::<_, ()>(())
        };
        written.for_each(add).unwrap();
        if let Some(lines) = Lines::of(&sections) {
            let _ = lines.symbols(START + 5);
        }
    }
    assert!(Lines::of(&Sections::default()).is_none());
}

/// This many units with these entries, which use these abbreviations; ranges are at offset 0 of
/// their section.
fn units(count: usize, abbreviations: &[u8], entries: &[u8], ranges: &[u8]) -> Sections<'static> {
    let mut unit = Vec::new();
    unit.extend((7 + entries.len() as u32).to_le_bytes());
    // Version 4, abbreviations at 0, addresses of four bytes.
    unit.extend([4, 0, 0, 0, 0, 0, 4]);
    unit.extend(entries);
    let mut sections = Sections { code_start: 0, ..Sections::default() };
    for (name, data) in [
        (".debug_info", unit.repeat(count)),
        (".debug_abbrev", abbreviations.to_vec()),
        (".debug_ranges", ranges.to_vec()),
    ] {
        sections.dwarf.insert(name, Box::leak(data.into_boxed_slice()));
    }
    sections
}

#[test]
fn functions_may_be_inlined_into_each_other_a_hundred_times() {
    let abbreviations = [
        &[1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0][..], // a unit: children, low_pc, high_pc
        &[2, 0x2e, 1, 0x11, 1, 0x12, 6, 0, 0],     // a function, the same
        &[3, 0x1d, 1, 0x11, 1, 0x12, 6, 0, 0],     // an inlined function, the same
        &[4, 0x0b, 1, 0, 0],                       // a block: children
        &[0],
    ]
    .concat();
    let entry = |code: u8| [&[code][..], &[0; 4], &1000_u32.to_le_bytes()].concat();
    let nested = |depth: usize| {
        let inlined = [entry(3), vec![4]].concat().repeat(depth);
        // Sequential inlined functions do not count.
        let others = [entry(3), vec![0]].concat().repeat(1000);
        let entries = [entry(1), entry(2), others, inlined, vec![0; 2 * depth + 2]].concat();
        units(1, &abbreviations, &entries, &[])
    };
    assert_eq!(Lines::of(&nested(100)).unwrap().symbols(500).len(), 101);
    for depth in [101, 100_000] {
        assert!(Lines::of(&nested(depth)).is_none());
    }
}

#[test]
fn a_list_shared_by_all_units_is_read_within_the_budget() {
    // A unit: no children, ranges.
    let abbreviations = [1, 0x11, 0, 0x55, 0x17, 0, 0, 0];
    let ranges: Vec<u8> = (1..60_000_u32).flat_map(|at| [at, at + 1]).flat_map(u32::to_le_bytes).collect();
    let read = |count| Lines::of(&units(count, &abbreviations, &[1, 0, 0, 0, 0], &ranges));
    assert!(read(2).is_some());
    assert!(read(300).is_none());
}

#[test]
fn names_and_dwarf_are_found_in_a_binary_module() {
    let text = r#"(module $shop
        (func $"_ZN4shop4sell17h0123456789abcdefE" nop)
        (func $plain nop)
        (func nop))"#;
    let mut bytes = wat::parse_str(text).unwrap();
    let custom = [&[0, 16, 11][..], b".debug_info", &[1, 2, 3, 4]].concat();
    bytes.extend(custom);
    let sections = Sections::of(&bytes);
    assert_eq!(sections.module_name, Some("shop"));
    let names: Vec<_> = (0..3).map(|index| sections.function_name(index)).collect();
    assert_eq!(names, [Some("shop::sell".to_owned()), Some("plain".to_owned()), None]);
    assert_eq!(sections.dwarf[".debug_info"], [1, 2, 3, 4]);
    assert_eq!(bytes[sections.code_start as usize], 3, "the number of functions");
}
