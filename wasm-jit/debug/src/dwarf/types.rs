//! Types of the source: their entries, sizes and members.

use gimli::UnitOffset;

use super::Dwarf;
use super::entries::{Entry, MAX_LINKS};

/// A type: an entry of DWARF, or one that is derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub unit: usize,
    /// `None` for void.
    pub entry: Option<UnitOffset>,
    /// The dimensions of the array that are indexed already.
    indexed: usize,
    /// The number of pointers to the entry's type that it is away from it.
    stars: usize,
    /// The encoding and size of a type of C, which the program need not have.
    base: Option<(gimli::DwAte, u64)>,
}

impl Type {
    pub(super) fn of(unit: usize, entry: Option<UnitOffset>) -> Self {
        Self { unit, entry, indexed: 0, stars: 0, base: None }
    }

    pub(crate) fn void() -> Self {
        Self::of(0, None)
    }

    /// The type of pointers to it, `stars` times.
    pub(crate) fn pointer(self, stars: usize) -> Self {
        Self { stars: self.stars + stars, ..self }
    }
}

/// A type, as values are read.
#[derive(Debug)]
pub(super) enum Shape {
    Base {
        encoding: gimli::DwAte,
        size: u64,
    },
    Pointer {
        to: Type,
        size: u64,
    },
    /// A pointer that is shown as its target. In C++, it stands for its target everywhere, an
    /// alias.
    Reference {
        to: Type,
        size: u64,
        is_alias: bool,
    },
    Struct,
    Array {
        of: Type,
        count: u64,
    },
    Enum {
        of: Option<Type>,
        size: u64,
        names: Vec<(i128, String)>,
    },
    Other,
}

/// A member of a structure, or a part of one that has no name.
#[derive(Debug)]
pub(super) struct Member {
    pub name: Option<String>,
    pub ty: Type,
    /// The offset in bytes.
    pub offset: u64,
    pub field: Option<Field>,
}

/// The position of a bit-field in the bytes from its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// The number of less significant bits in the first byte.
    pub shift: u32,
    /// The number of bits.
    pub size: u32,
}

impl Dwarf {
    pub(super) fn type_of(&self, unit: usize, entry: &Entry) -> Type {
        let of = self.attribute(unit, entry, gimli::DW_AT_type);
        match of.and_then(|(unit, value)| self.reference(unit, &value)) {
            Some((unit, entry)) => Type::of(unit, Some(entry)),
            None => Type::of(unit, None),
        }
    }

    /// The entry of a type, after removing qualifiers and aliases. A pointer to an entry has none.
    fn resolve(&self, mut ty: Type) -> Option<(Type, Entry)> {
        for _ in 0..MAX_LINKS {
            let offset = ty.entry.filter(|_| ty.stars == 0)?;
            let entry = self.parsed.0[ty.unit].entry(offset).ok()?;
            match entry.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type => ty = self.type_of(ty.unit, &entry),
                _ => return Some((ty, entry)),
            }
        }
        None
    }

    /// The size of a type in bytes; 0 if it is not known.
    pub(super) fn size_of(&self, mut ty: Type) -> u64 {
        let mut count = 1_u64;
        // An array of itself is malformed.
        for _ in 0..MAX_LINKS {
            let size = match self.shape(ty) {
                Shape::Array { of, count: inner } => {
                    count = count.saturating_mul(inner);
                    ty = of;
                    continue;
                }
                Shape::Base { size, .. }
                | Shape::Pointer { size, .. }
                | Shape::Reference { size, .. }
                | Shape::Enum { size, .. } => size,
                Shape::Struct | Shape::Other => {
                    self.resolve(ty).and_then(|(_, entry)| byte_size(&entry)).unwrap_or(0)
                }
            };
            return size.saturating_mul(count);
        }
        0
    }

    /// The distance of the elements to which pointers to a type point; `None` if the size is not
    /// known.
    pub(super) fn stride(&self, of: Type) -> Option<u64> {
        let is_void = of.stars == 0 && of.entry.is_none() && of.base.is_none();
        if is_void { Some(1) } else { Some(self.size_of(of)).filter(|size| *size > 0) }
    }

    fn size_of_pointer(&self, unit: usize) -> u64 {
        self.parsed.0.get(unit).map_or(4, |unit| unit.encoding().address_size.into())
    }

    pub(super) fn shape(&self, ty: Type) -> Shape {
        if let Some(stars) = ty.stars.checked_sub(1) {
            return Shape::Pointer { to: Type { stars, ..ty }, size: self.size_of_pointer(ty.unit) };
        }
        if let Some((encoding, size)) = ty.base {
            return Shape::Base { encoding, size };
        }
        let Some((ty, entry)) = self.resolve(ty) else { return Shape::Other };
        let size = byte_size(&entry);
        match entry.tag() {
            gimli::DW_TAG_base_type => match entry.attr_value(gimli::DW_AT_encoding) {
                Some(gimli::AttributeValue::Encoding(encoding)) => {
                    Shape::Base { encoding, size: size.unwrap_or(0) }
                }
                _ => Shape::Other,
            },
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => {
                let to = self.type_of(ty.unit, &entry);
                let size = size.unwrap_or_else(|| self.size_of_pointer(ty.unit));
                let is_alias = entry.tag() != gimli::DW_TAG_pointer_type;
                // In Rust, the type has a name.
                let is_reference = || self.name(ty.unit, &entry).is_some_and(|name| name.starts_with('&'));
                match is_alias || is_reference() {
                    true => Shape::Reference { to, size, is_alias },
                    false => Shape::Pointer { to, size },
                }
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                Shape::Struct
            }
            gimli::DW_TAG_array_type => {
                let mut counts = Vec::new();
                self.children(ty, |_, child| {
                    if child.tag() == gimli::DW_TAG_subrange_type {
                        let value = |name| child.attr_value(name).and_then(|value| value.udata_value());
                        let bound = || value(gimli::DW_AT_upper_bound)?.checked_add(1);
                        counts.push(value(gimli::DW_AT_count).or_else(bound).unwrap_or(0));
                    }
                });
                let of = match ty.indexed + 1 < counts.len() {
                    true => Type { indexed: ty.indexed + 1, ..ty },
                    false => self.type_of(ty.unit, &entry),
                };
                Shape::Array { of, count: counts.get(ty.indexed).copied().unwrap_or(0) }
            }
            gimli::DW_TAG_enumeration_type => {
                let mut names = Vec::new();
                self.children(ty, |unit, child| {
                    let value = child.attr_value(gimli::DW_AT_const_value);
                    let value = value.and_then(|value| {
                        value.sdata_value().map(i128::from).or(value.udata_value().map(i128::from))
                    });
                    names.extend(value.zip(self.name(unit, child)));
                });
                let of = Some(self.type_of(ty.unit, &entry)).filter(|of| of.entry.is_some());
                Shape::Enum { of, size: size.unwrap_or(4), names }
            }
            _ => Shape::Other,
        }
    }

    fn children(&self, ty: Type, mut visit: impl FnMut(usize, &Entry)) {
        let Some(offset) = ty.entry else { return };
        let Ok(mut entries) = self.parsed.0[ty.unit].entries_at_offset(offset) else { return };
        let Ok(Some(parent)) = entries.next_dfs() else { return };
        let depth = parent.depth();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.depth() <= depth {
                return;
            }
            if entry.depth() == depth + 1 {
                visit(ty.unit, entry);
            }
        }
    }

    /// The members of a structure.
    pub(super) fn members(&self, ty: Type) -> Vec<Member> {
        let mut members = Vec::new();
        let Some((ty, _)) = self.resolve(ty) else { return members };
        self.children(ty, |unit, child| {
            if matches!(child.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance)
                && child.attr_value(gimli::DW_AT_declaration).is_none()
                && child.attr_value(gimli::DW_AT_external).is_none()
            {
                let name = self.name(unit, child);
                let ty = self.type_of(unit, child);
                let (offset, field) = self.position(ty, child);
                members.push(Member { name, ty, offset, field });
            }
        });
        members
    }

    /// The offset of a member in bytes, and its bits from there if it is a bit-field.
    fn position(&self, ty: Type, member: &Entry) -> (u64, Option<Field>) {
        let value = |name| member.attr_value(name).and_then(|value| value.udata_value());
        let offset = value(gimli::DW_AT_data_member_location).unwrap_or(0);
        let Some(size) = value(gimli::DW_AT_bit_size).filter(|size| (1..=64).contains(size)) else {
            return (offset, None);
        };
        let from_start = value(gimli::DW_AT_data_bit_offset);
        // Before DWARF 4, bits are counted from the most significant one of the storage.
        let from_end = || {
            let storage = value(gimli::DW_AT_byte_size).unwrap_or_else(|| self.size_of(ty));
            storage.saturating_mul(8).checked_sub(value(gimli::DW_AT_bit_offset)?)?.checked_sub(size)
        };
        let bits = from_start.or_else(from_end).unwrap_or(0);
        let field = Field { shift: (bits % 8) as u32, size: size as u32 };
        (offset.saturating_add(bits / 8), Some(field))
    }

    /// The name of a structure.
    pub(super) fn type_name(&self, ty: Type) -> Option<String> {
        let (ty, entry) = self.resolve(ty)?;
        self.name(ty.unit, &entry)
    }

    /// The size in bytes of a type with this name, as in C: `struct point`, `unsigned long`. `None`
    /// if the program has no such type, or its size is not known.
    pub(crate) fn size_of_name(&self, name: &str) -> Option<u64> {
        Some(self.size_of(self.type_of_name(name)?))
    }

    /// The type with this name, whose size is known.
    pub(crate) fn type_of_name(&self, name: &str) -> Option<Type> {
        let name = canonical(name);
        // Declarations have no size.
        let mut found =
            self.index().types(&name).into_iter().map(|(unit, entry)| Type::of(unit, Some(entry)));
        found.find(|ty| self.size_of(*ty) > 0).or_else(|| self.base_type(&name))
    }

    /// A type of C.
    fn base_type(&self, name: &str) -> Option<Type> {
        use gimli::{DW_ATE_boolean, DW_ATE_float, DW_ATE_signed, DW_ATE_signed_char};
        use gimli::{DW_ATE_unsigned, DW_ATE_unsigned_char};
        let base = match name {
            "bool" => (DW_ATE_boolean, 1),
            "char" | "signed char" => (DW_ATE_signed_char, 1),
            "unsigned char" => (DW_ATE_unsigned_char, 1),
            "short" => (DW_ATE_signed, 2),
            "unsigned short" => (DW_ATE_unsigned, 2),
            "int" => (DW_ATE_signed, 4),
            "unsigned int" => (DW_ATE_unsigned, 4),
            "long" => (DW_ATE_signed, self.size_of_pointer(0)),
            "unsigned long" => (DW_ATE_unsigned, self.size_of_pointer(0)),
            "long long" => (DW_ATE_signed, 8),
            "unsigned long long" => (DW_ATE_unsigned, 8),
            "float" => (DW_ATE_float, 4),
            "double" => (DW_ATE_float, 8),
            _ => return None,
        };
        Some(Type { base: Some(base), ..Type::void() })
    }

    /// The size of an address in bytes; `None` without units.
    pub(crate) fn address_size(&self) -> Option<u64> {
        Some(self.parsed.0.first()?.encoding().address_size.into())
    }
}

fn byte_size(entry: &Entry) -> Option<u64> {
    entry.attr_value(gimli::DW_AT_byte_size).and_then(|size| size.udata_value())
}

/// The name of a type in DWARF: without qualifiers, and for integers, the words that clang uses, in
/// their order.
fn canonical(name: &str) -> String {
    let ignored = ["const", "volatile", "struct", "union", "enum", "class"];
    let words: Vec<&str> = name.split_whitespace().filter(|word| !ignored.contains(word)).collect();
    let count = |word: &str| words.iter().filter(|of| **of == word).count();
    let integer = ["unsigned", "signed", "long", "short", "int", "char"];
    if words.is_empty() || !words.iter().all(|word| integer.contains(word)) {
        return words.join(" ");
    }
    let size = match (count("long"), count("short"), count("char")) {
        (0, 0, 0) => "int",
        (1, ..) => "long",
        (0, 1.., _) => "short",
        (0, 0, _) => "char",
        (2.., ..) => "long long",
    };
    match (count("unsigned") > 0, count("signed") > 0) {
        (true, _) => format!("unsigned {size}"),
        (false, true) if size == "char" => "signed char".to_owned(),
        _ => size.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_name() {
        for (name, expected) in [
            ("unsigned", "unsigned int"),
            ("long unsigned int", "unsigned long"),
            ("long long", "long long"),
            ("signed char", "signed char"),
            ("short int", "short"),
            ("const char", "char"),
            ("struct point", "point"),
            ("size_t", "size_t"),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }
}
