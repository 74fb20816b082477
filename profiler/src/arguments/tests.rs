//! Copies of values in code that is assembled here, and damaged debugging information. What probes
//! fetch is compared with what programs pass in `tests/tests/script/arguments.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSection, ObjectSymbol};

use super::copies::{self, Copies, Place};
use super::{Objects, Register, ScalarType, Site, Source, Unavailable};

const RBX: Register = Register(3);
const RDX: Register = Register::RDX;
const RDI: Register = Register::RDI;
const R12: Register = Register(12);

const INT: ScalarType = ScalarType::Integer { bytes: 4, is_signed: true };

fn tool(arguments: &[&str], folder: &Path, output: &str, source: &str, text: &str) -> PathBuf {
    let (source, output) = (folder.join(source), folder.join(output));
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(arguments).arg("-o").arg(&output).arg(&source);
    assert!(compiler.status().unwrap().success());
    output
}

/// Code with a call at the label `site`, after which it may continue.
struct Assembled {
    code: Vec<u8>,
    site: u64,
    returns: u64,
}

fn assembled(text: &str) -> Assembled {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(".intel_syntax noprefix\nf:\n{}\n", text.replace("; ", "\n"));
    let text = text.replace("CALL", "site: call rax\nreturns:");
    let file = tool(&["-c"], folder.path(), "code.o", "code.s", &text);
    let data = fs::read(file).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let symbol =
        |name: &str| elf.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a label").address();
    let code = elf.section_by_name(".text").unwrap().data().unwrap().to_vec();
    Assembled { code, site: symbol("site"), returns: symbol("returns") }
}

/// Checks where a probe finds the value that a register has at the entry.
#[track_caller]
fn check(text: &str, register: Register, bytes: u8, expected: Option<Place>) {
    let Assembled { code, site, .. } = assembled(text);
    let value = copies::of_entry(register).unwrap();
    let found = Copies::at(&code, 0, site).and_then(|copies| copies.place_of(value, bytes));
    assert_eq!(found, expected, "{text}");
}

#[test]
fn values_are_followed_through_registers_and_slots() {
    let in_rbx = Some(Place::Register(RBX));
    check("push rbx; mov rbx, rdi; xor edi, edi; CALL", RDI, 8, in_rbx);
    check("mov ebx, edi; CALL", RDI, 8, None);
    check("mov ebx, edi; CALL", RDI, 4, in_rbx);
    check("movsx ebx, dil; CALL", RDI, 1, in_rbx);
    check("movsx ebx, dil; CALL", RDI, 2, None);
    check("mov rbx, rdi; add rbx, 1; CALL", RDI, 8, None);
    check("mov rbx, rdi; cmovz rbx, rax; CALL", RDI, 8, None);
    check("mov rbx, rdi; mov bl, 1; CALL", RDI, 8, None);
    check("sub rsp, 24; mov [rsp + 8], rdx; CALL", RDX, 8, Some(Place::Stack(8)));
    check("sub rsp, 24; mov [rsp + 8], edx; CALL", RDX, 4, Some(Place::Stack(8)));
    check("push rbp; mov rbp, rsp; sub rsp, 32; mov [rbp - 20], edx; CALL", RDX, 4, Some(Place::Stack(12)));
    check("push rdx; push rbx; CALL", RDX, 8, Some(Place::Stack(8)));
    check("push rdx; pop r12; CALL", RDX, 8, Some(Place::Register(R12)));
    check("sub rsp, 24; mov [rsp + 8], rdx; mov r12, [rsp + 8]; CALL", RDX, 8, Some(Place::Register(R12)));
    let xmm1 = Register(Register::XMM0.0 + 1);
    check("sub rsp, 24; movss [rsp + 4], xmm1; xorps xmm1, xmm1; CALL", xmm1, 4, Some(Place::Stack(4)));
    check("CALL", xmm1, 8, Some(Place::Register(xmm1)));
    // A register that the stub of a probe overwrites, and memory below the stack pointer.
    check("CALL", RDX, 8, None);
    check("mov [rsp - 8], rdx; CALL", RDX, 8, None);
}

#[test]
fn slots_that_may_have_been_overwritten_are_not_known() {
    let store = "sub rsp, 40; mov [rsp + 8], rdx; ";
    check(&format!("{store} mov dword ptr [rsp + 12], 0; CALL"), RDX, 8, None);
    check(&format!("{store} mov dword ptr [rsp + 16], 0; CALL"), RDX, 8, Some(Place::Stack(8)));
    check(&format!("{store} movups [rsp + 1], xmm0; CALL"), RDX, 8, None);
    check(&format!("{store} mov [rax], rcx; CALL"), RDX, 8, None);
    check(&format!("{store} mov [rsp + rcx * 8], rcx; CALL"), RDX, 8, None);
    check(&format!("{store} rep stosb; CALL"), RDX, 8, None);
    check(&format!("{store} and rsp, -32; CALL"), RDX, 8, None);
}

#[test]
fn only_code_that_is_executed_once_is_followed() {
    let in_rbx = Some(Place::Register(RBX));
    // A loop around the call, and a loop before it.
    check("mov rbx, rdi; 1: CALL; dec ecx; jnz 1b; ret", RDI, 8, None);
    check("mov rbx, rdi; 1: dec ecx; jnz 1b; CALL", RDI, 8, None);
    check("mov rbx, rdi; jmp 1f; 1: CALL", RDI, 8, None);
    check("jz 1f; mov rbx, rdi; CALL; 1: ret", RDI, 8, None);
    // Code that may be skipped.
    let vectors = "sub rsp, 216; test al, al; je 1f; movaps [rsp + 80], xmm0; 1: ";
    check(&format!("mov rbx, rdi; {vectors} CALL"), RDI, 8, in_rbx);
    check("test al, al; je 1f; mov rbx, rdi; 1: CALL", RDI, 8, None);
    check("sub rsp, 24; mov [rsp], rdi; je 1f; mov [rsp], rcx; 1: CALL", RDI, 8, None);
    check("mov rbx, rdi; je 1f; push rcx; 1: CALL", RDI, 8, None);
    check("mov rbx, rdi; call rcx; CALL", RDI, 8, in_rbx);
    check("mov rcx, rdi; call r8; CALL", RDI, 8, None);
}

/// clang calls the probe before it stores the parameters, which it has saved elsewhere.
#[test]
fn a_value_that_is_stored_after_the_call_is_found_before_it() {
    let slot = -16;
    let check = |text: &str, ty: ScalarType, expected: Option<Place>| {
        let Assembled { code, site, returns } = assembled(text);
        let copies = Copies::at(&code, 0, site).unwrap();
        assert!(!copies.is_stored(slot, ty.bytes()), "{text}");
        let value = copies.clone().next_store(&code, 0, returns, slot, ty);
        assert_eq!(value.and_then(|value| copies.place_of(value, ty.bytes())), expected, "{text}");
    };
    let frame = "push rbp; mov rbp, rsp; sub rsp, 32; mov [rbp - 24], edi; CALL; mov edi, [rbp - 24]";
    check(&format!("{frame}; mov [rbp - 8], edi"), INT, Some(Place::Stack(8)));
    check(&format!("{frame}; add edi, 1; mov [rbp - 8], edi"), INT, None);
    check(&format!("{frame}; jz 1f; mov [rbp - 8], edi; 1: ret"), INT, None);
    check(&format!("{frame}; and dil, 1; mov [rbp - 8], dil"), ScalarType::Bool, Some(Place::Stack(8)));
    check(&format!("{frame}; and dil, 3; mov [rbp - 8], dil"), ScalarType::Bool, None);
    check(&format!("{frame}; mov [rbp - 8], dx"), INT, None);
}

#[test]
fn values_are_extended_as_their_types_say() {
    let integer = |bytes, is_signed| ScalarType::Integer { bytes, is_signed };
    assert_eq!(integer(1, true).extend(0x1ff), u64::MAX);
    assert_eq!(integer(1, false).extend(0x1ff), 0xff);
    assert_eq!(integer(2, true).extend(0x7fff), 0x7fff);
    assert_eq!(integer(4, true).extend(0x8000_0000), 0xffff_ffff_8000_0000);
    assert_eq!(integer(8, true).extend(u64::MAX), u64::MAX);
    assert_eq!(ScalarType::Bool.extend(0xff00), 0);
    assert_eq!(ScalarType::Float.extend(0xff_3f80_0000), 0x3f80_0000);
}

/// A library with a function whose debugging information is known, and its entry.
fn library(folder: &Path, flags: &[&str]) -> (PathBuf, Site) {
    const TEXT: &str = "void __cyg_profile_func_enter(void *f, void *s);
        int f(int a, struct { long x; } *b, double c, struct pair { long x, y; } d) {
            __asm__(\"site:\");
            __cyg_profile_func_enter(f, b);
            return a + (int)c + (int)d.x;
        }";
    let arguments = [&["-shared", "-fPIC", "-O0", "-w"], flags].concat();
    let file = tool(&arguments, folder, &format!("library{}", flags.concat()), "library.c", TEXT);
    let data = fs::read(&file).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let address =
        |name: &str| elf.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a symbol").address();
    // The call is the first one after the label.
    let text = elf.section_by_name(".text").unwrap();
    let at = |address: u64| text.data().unwrap()[(address - text.address()) as usize];
    let site = (address("site")..).find(|address| at(*address) == 0xe8).unwrap();
    (file, Site { function: address("f"), call: site })
}

#[test]
fn parameters_have_names_types_and_places() {
    let folder = tempfile::tempdir().unwrap();
    let (file, entry) = library(folder.path(), &["-g"]);
    let mut objects = Objects::default();
    let parameters = objects.parameters(&file, entry.function).unwrap();
    let found: Vec<_> = parameters.iter().map(|it| (it.name.as_deref().unwrap(), it.ty)).collect();
    let pointer = ScalarType::Integer { bytes: 8, is_signed: false };
    let expected = [("a", Some(INT)), ("b", Some(pointer)), ("c", Some(ScalarType::Double)), ("d", None)];
    assert_eq!(found, expected);
    let fetch = objects.fetch(&file, entry, 0).unwrap();
    assert!(matches!(fetch.source, Source::Memory(Register::RBP, ..=-4)) && fetch.ty == INT, "{fetch:?}");
    assert_eq!(objects.fetch(&file, entry, 3), Err(Unavailable::NoNumber));
    assert_eq!(objects.fetch(&file, entry, 4), Err(Unavailable::UnknownFunction));
    assert_eq!(objects.parameters(&file, entry.function + 1), Err(Unavailable::UnknownFunction));
    assert_eq!(objects.parameters(&file, u64::MAX), Err(Unavailable::UnknownFunction));
    let elsewhere = Site { call: u64::MAX, ..entry };
    assert_eq!(objects.fetch(&file, elsewhere, 0), Err(Unavailable::UnknownPlace));
}

#[test]
fn objects_without_parameters_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |flags: &[&str]| {
        let (file, entry) = library(folder.path(), flags);
        Objects::default().parameters(&file, entry.function).unwrap_err()
    };
    assert_eq!(reason(&["-g0"]), Unavailable::NoDebugInformation);
    assert_eq!(reason(&["-g1"]), Unavailable::NoParameters);
    let missing = Objects::default().parameters(&folder.path().join("missing"), 0).unwrap_err();
    assert!(matches!(missing, Unavailable::Unreadable(_)), "{missing}");
}

/// Reading it neither panics nor runs forever.
#[test]
fn damaged_debugging_information() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&["-g"][..], &["-g", "-O2"], &["-g", "-gdwarf-4"]] {
        let (file, entry) = library(folder.path(), flags);
        let whole = fs::read(&file).unwrap();
        let damaged = folder.path().join("damaged.so");
        for seed in 0..400 {
            for (byte, length) in [(0xff, 16), (0, 4), (0x91, 1)] {
                let mut bytes = whole.clone();
                let position = whole.len() / 400 * seed;
                bytes[position..(position + length).min(whole.len())].fill(byte);
                fs::write(&damaged, &bytes).unwrap();
                let mut objects = Objects::default();
                let _ = objects.parameters(&damaged, entry.function);
                for parameter in 0..4 {
                    let _ = objects.fetch(&damaged, entry, parameter);
                }
            }
        }
    }
}

/// `float` parameters of a function without a prototype are passed as `double`, which gcc's
/// debugging information does not say.
#[test]
fn floats_without_a_prototype_are_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let text = "float old(x, n) float x; int n; { return x + n; } float now(float x) { return x; }";
    let flags = ["-g", "-std=gnu89", "-shared", "-fPIC", "-w"];
    let file = tool(&flags, folder.path(), "old.so", "old.c", text);
    let data = fs::read(&file).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let types = |name: &str| {
        let address = elf.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap().address();
        let parameters = Objects::default().parameters(&file, address).unwrap();
        parameters.into_iter().map(|parameter| parameter.ty).collect::<Vec<_>>()
    };
    assert_eq!(types("old"), [None, Some(INT)]);
    assert_eq!(types("now"), [Some(ScalarType::Float)]);
}
