//! [`Object`]: a value of the source with its type, and what expressions do with it.

use wasm_jit::Val;

use super::Dwarf;
use super::entries::MAX_LINKS;
use super::types::{Field, Member, Shape, Type};
use crate::Error;
use crate::frames::Scope;
use crate::value::Value;

/// Maximum number of elements of an array, or characters of a string, that are shown.
const MAX_SHOWN: u64 = 200;
/// Maximum depth of structures that are shown.
const MAX_NESTED: usize = 4;
/// Maximum number of members that are shown, in all structures of a value.
const MAX_MEMBERS: u64 = 5000;
/// Maximum number of structures without a name in which a member is looked for.
const MAX_UNNAMED: usize = 256;

/// How much of a value may still be shown.
#[derive(Debug)]
struct Rest {
    elements: u64,
    members: u64,
}

/// The place of a value.
#[derive(Clone, Debug)]
pub(super) enum At {
    Memory(u64),
    /// A local, and the offset of the value in its bytes.
    Local(u32, usize),
    /// A global, likewise.
    Global(u32, usize),
    /// Computed; `None` for the bytes that do not exist.
    Bytes(Vec<Option<u8>>),
}

impl At {
    pub(super) fn bits(bits: u64) -> Self {
        Self::Bytes(bits.to_le_bytes().map(Some).to_vec())
    }
}

/// A value of the source with its type.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    ty: Type,
    at: At,
    /// The bits of a bit-field.
    field: Option<Field>,
}

/// A slice or string of Rust.
#[derive(Clone, Copy, Debug)]
struct Slice {
    of: Type,
    start: u64,
    count: u64,
    is_text: bool,
}

pub(super) fn optimized_out() -> Error {
    Error::Value("optimized out".to_owned())
}

fn no_pointer() -> Error {
    Error::Value("neither a pointer nor an array".to_owned())
}

fn dwarf_of<'a>(scope: &Scope<'a, '_>) -> Result<&'a Dwarf, Error> {
    scope.code().dwarf().ok_or_else(optimized_out)
}

impl Object {
    /// The value of a type at a place; for a reference that stands for its target, the target.
    pub(super) fn of(ty: Type, at: At, scope: &mut Scope<'_, '_>) -> Result<Self, Error> {
        let mut object = Self { ty, at, field: None };
        for _ in 0..MAX_LINKS {
            match dwarf_of(scope)?.shape(object.ty) {
                Shape::Reference { to, size, is_alias: true } => {
                    let at = At::Memory(object.bits(size, scope)?);
                    object = Self { ty: to, at, field: None };
                }
                _ => return Ok(object),
            }
        }
        Err(optimized_out())
    }

    /// A number of a type.
    fn number(ty: Type, bits: u128) -> Self {
        Self { ty, at: At::Bytes(bits.to_le_bytes().map(Some).to_vec()), field: None }
    }

    /// The address of the object in memory, with the type of pointers to it.
    pub(crate) fn address(&self) -> Result<Self, Error> {
        match self.at {
            _ if self.field.is_some() => Err(Error::Value("a bit-field has no address".to_owned())),
            At::Memory(address) => Ok(Self::number(self.ty.pointer(1), address.into())),
            _ => Err(Error::Value("it is not in memory".to_owned())),
        }
    }

    /// The bytes of the object, of which there are at most 16.
    fn bytes(&self, size: usize, scope: &mut Scope<'_, '_>) -> Result<u128, Error> {
        let mut bytes = [0; 16];
        let from = |value: &Val, offset: usize| {
            let bits = bits_of(value).ok_or_else(optimized_out)?;
            Ok::<_, Error>(bits.checked_shr(bits_before(offset)).unwrap_or(0))
        };
        let bits = match &self.at {
            At::Memory(address) => {
                scope.read_memory(0, *address, &mut bytes[..size])?;
                u128::from_le_bytes(bytes)
            }
            At::Local(index, offset) => from(&scope.local(*index)?, *offset)?,
            At::Global(index, offset) => from(&scope.global(*index)?, *offset)?,
            At::Bytes(known) => {
                for (index, byte) in bytes[..size].iter_mut().enumerate() {
                    *byte = known.get(index).copied().flatten().ok_or_else(optimized_out)?;
                }
                u128::from_le_bytes(bytes)
            }
        };
        Ok(bits & mask(8 * size as u32))
    }

    /// The bits of a scalar of this size.
    fn bits(&self, size: u64, scope: &mut Scope<'_, '_>) -> Result<u64, Error> {
        Ok(match self.field {
            None => self.bytes(size.min(8) as usize, scope)? as u64,
            Some(field) => {
                let bytes = self.bytes(field.bytes(), scope)?;
                (bytes >> field.shift & mask(field.size)) as u64
            }
        })
    }

    /// The size of the object in bytes.
    pub(crate) fn size(&self, scope: &Scope<'_, '_>) -> Result<u64, Error> {
        match dwarf_of(scope)?.size_of(self.ty) {
            _ if self.field.is_some() => Err(Error::Value("a bit-field has no size in bytes".to_owned())),
            0 => Err(Error::Value("the size is not known".to_owned())),
            size => Ok(size),
        }
    }

    /// The value of the object.
    pub(crate) fn value(&self, scope: &mut Scope<'_, '_>) -> Result<Value, Error> {
        self.shown(scope, 0, &mut Rest { elements: MAX_SHOWN, members: MAX_MEMBERS })
    }

    fn shown(&self, scope: &mut Scope<'_, '_>, nested: usize, rest: &mut Rest) -> Result<Value, Error> {
        let dwarf = dwarf_of(scope)?;
        let width = |size: u64| self.field.map_or(8 * size.clamp(1, 8) as u32, |field| field.size);
        Ok(match dwarf.shape(self.ty) {
            Shape::Base { encoding, size: 16 } if encoding != gimli::DW_ATE_float => {
                let bits = self.bytes(16, scope)?;
                let is_signed = encoding == gimli::DW_ATE_signed;
                Value::Text(if is_signed { bits.cast_signed().to_string() } else { bits.to_string() })
            }
            Shape::Base { encoding: gimli::DW_ATE_float, size: 16 } => Value::F128(self.bytes(16, scope)?),
            Shape::Base { encoding: gimli::DW_ATE_float, size } if size != 4 && size != 8 => {
                Value::Text(format!("<{}>", no_float(size)))
            }
            Shape::Base { encoding, size } => {
                let value = scalar(encoding, width(size), self.bits(size, scope)?);
                match value.integer() {
                    Some(code) if size == 1 && is_character(encoding) => {
                        Value::Named { value: code, name: format!("{code} {}", character(code as u8)) }
                    }
                    _ => value,
                }
            }
            Shape::Pointer { to, size } => {
                let address = self.bits(size, scope)?;
                let is_text =
                    matches!(dwarf.shape(to), Shape::Base { encoding, size: 1 } if is_character(encoding));
                let text = if is_text && address != 0 {
                    format!(" {}", string(address, scope))
                } else {
                    String::new()
                };
                Value::Named { value: address.into(), name: format!("{address:#x}{text}") }
            }
            Shape::Reference { .. } if nested >= MAX_NESTED => Value::Text("...".to_owned()),
            Shape::Reference { to, size, .. } => {
                let at = At::Memory(self.bits(size, scope)?);
                Self::of(to, at, scope)?.shown(scope, nested + 1, rest)?
            }
            Shape::Enum { of, size, names } => {
                let bits = self.bits(size, scope)?;
                let value = match of.map(|of| dwarf.shape(of)) {
                    Some(Shape::Base { encoding, size }) => scalar(encoding, width(size), bits),
                    _ => Value::Unsigned(bits),
                };
                let named = names.into_iter().find(|(of, _)| Some(*of) == value.integer());
                named.map_or(value, |(value, name)| Value::Named { value, name })
            }
            Shape::Struct | Shape::Array { .. } if nested >= MAX_NESTED => Value::Text("{...}".to_owned()),
            Shape::Struct => match self.slice(scope)? {
                Some(slice) if slice.is_text => Value::Text(characters(slice.start, slice.count, scope)),
                Some(Slice { of, start, count, .. }) => {
                    elements_of((of, count), scope, nested, rest, |offset, scope| {
                        Self::of(of, At::Memory(start.wrapping_add(offset)), scope)
                    })?
                }
                None => self.members_shown(scope, nested, rest)?,
            },
            Shape::Array { of, count } => {
                if let (Shape::Base { encoding, size: 1 }, At::Memory(address)) = (dwarf.shape(of), &self.at)
                    && is_character(encoding)
                {
                    return Ok(Value::Text(characters(*address, count, scope)));
                }
                elements_of((of, count), scope, nested, rest, |offset, scope| self.part(of, offset, scope))?
            }
            Shape::Other => Value::Text("<unknown type>".to_owned()),
        })
    }

    fn members_shown(
        &self,
        scope: &mut Scope<'_, '_>,
        nested: usize,
        rest: &mut Rest,
    ) -> Result<Value, Error> {
        let mut text = String::from("{");
        for (number, member) in dwarf_of(scope)?.members(self.ty).iter().enumerate() {
            text += if number == 0 { "" } else { ", " };
            let Some(left) = rest.members.checked_sub(1) else {
                text += "...";
                break;
            };
            rest.members = left;
            let value = self.part_of(member, scope).and_then(|part| part.shown(scope, nested + 1, rest));
            text += &member.name.as_ref().map_or_else(String::new, |name| format!("{name} = "));
            text += &value.map_or_else(|error| format!("<{error}>"), |value| value.to_string());
        }
        Ok(Value::Text(text + "}"))
    }

    /// The slice of Rust that the object is: a structure with such a name.
    fn slice(&self, scope: &mut Scope<'_, '_>) -> Result<Option<Slice>, Error> {
        let dwarf = dwarf_of(scope)?;
        let name = dwarf.type_name(self.ty).unwrap_or_default();
        let name = name.strip_prefix("&mut ").or(name.strip_prefix('&')).unwrap_or_default();
        let is_text = name == "str";
        let members = if is_text || name.starts_with('[') { dwarf.members(self.ty) } else { Vec::new() };
        let find = |name: &str| members.iter().find(|member| member.name.as_deref() == Some(name));
        let (Some(start), Some(length)) = (find("data_ptr"), find("length")) else { return Ok(None) };
        let Shape::Pointer { to, size } = dwarf.shape(start.ty) else { return Ok(None) };
        let start = self.part_of(start, scope)?.bits(size, scope)?;
        let count = self.part_of(length, scope)?.bits(dwarf.size_of(length.ty), scope)?;
        Ok(Some(Slice { of: to, start, count, is_text }))
    }

    /// The part of the object at an offset.
    fn part(&self, ty: Type, offset: u64, scope: &mut Scope<'_, '_>) -> Result<Self, Error> {
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let at = match &self.at {
            At::Memory(address) => At::Memory(address.wrapping_add(offset)),
            At::Local(index, from) => At::Local(*index, from.saturating_add(skip)),
            At::Global(index, from) => At::Global(*index, from.saturating_add(skip)),
            At::Bytes(bytes) => At::Bytes(bytes.get(skip..).unwrap_or_default().to_vec()),
        };
        Self::of(ty, at, scope)
    }

    fn part_of(&self, member: &Member, scope: &mut Scope<'_, '_>) -> Result<Self, Error> {
        Ok(Self { field: member.field, ..self.part(member.ty, member.offset, scope)? })
    }

    /// A member of a structure, or of the structure to which a pointer points.
    pub(crate) fn member(&self, scope: &mut Scope<'_, '_>, name: &str) -> Result<Self, Error> {
        let dwarf = dwarf_of(scope)?;
        let mut object = self.clone();
        for _ in 0..MAX_LINKS {
            match dwarf.shape(object.ty) {
                Shape::Pointer { .. } | Shape::Reference { .. } => object = object.element(scope, 0)?,
                _ => break,
            }
        }
        let mut wanted = vec![object];
        for _ in 0..MAX_UNNAMED {
            let Some(object) = wanted.pop() else { break };
            let members = dwarf.members(object.ty);
            if let Some(member) = members.iter().find(|member| member.name.as_deref() == Some(name)) {
                return object.part_of(member, scope);
            }
            for member in members.iter().rev().filter(|member| member.name.is_none()) {
                wanted.extend(object.part(member.ty, member.offset, scope));
            }
        }
        Err(Error::Unknown { what: "member", name: name.to_owned() })
    }

    /// The names of the members of a structure, or of the one to which a pointer points.
    pub(crate) fn member_names(&self, scope: &mut Scope<'_, '_>) -> Vec<String> {
        let Ok(dwarf) = dwarf_of(scope) else { return Vec::new() };
        let mut wanted = vec![match dwarf.shape(self.ty) {
            Shape::Pointer { to, .. } | Shape::Reference { to, .. } => to,
            _ => self.ty,
        }];
        let mut names = Vec::new();
        for _ in 0..MAX_LINKS {
            let Some(ty) = wanted.pop() else { break };
            for member in dwarf.members(ty) {
                match member.name {
                    Some(name) => names.push(name),
                    None => wanted.push(member.ty),
                }
            }
        }
        names
    }

    /// The type of the elements of a pointer, array, reference or slice, and the address of the
    /// first one; `None` for other values.
    fn elements(&self, scope: &mut Scope<'_, '_>) -> Result<Option<(Type, u64)>, Error> {
        Ok(match dwarf_of(scope)?.shape(self.ty) {
            Shape::Pointer { to, size } | Shape::Reference { to, size, .. } => {
                Some((to, self.bits(size, scope)?))
            }
            Shape::Array { of, .. } => match self.at {
                At::Memory(address) => Some((of, address)),
                _ => return Err(Error::Value("it is not in memory".to_owned())),
            },
            Shape::Struct => self.slice(scope)?.map(|slice| (slice.of, slice.start)),
            _ => None,
        })
    }

    /// An element of an array, or of the array to which a pointer points.
    pub(crate) fn element(&self, scope: &mut Scope<'_, '_>, index: i128) -> Result<Self, Error> {
        let dwarf = dwarf_of(scope)?;
        if let (Shape::Array { of, .. }, At::Bytes(_)) = (dwarf.shape(self.ty), &self.at) {
            let offset = u64::try_from(index).ok().and_then(|index| index.checked_mul(dwarf.size_of(of)));
            return self.part(of, offset.ok_or_else(optimized_out)?, scope);
        }
        let (of, start) = self.elements(scope)?.ok_or_else(no_pointer)?;
        let stride = match index {
            0 => 0,
            _ => dwarf.stride(of).ok_or_else(|| Error::Value("the size is not known".to_owned()))?,
        };
        Self::of(of, At::Memory(moved(start, index, stride)?), scope)
    }

    /// The pointer that is `count` elements after this pointer, or after the start of this array;
    /// `None` for other values.
    pub(crate) fn offset(&self, scope: &mut Scope<'_, '_>, count: i128) -> Result<Option<Self>, Error> {
        let Some((of, start)) = self.pointed(scope)? else { return Ok(None) };
        let stride = dwarf_of(scope)?.stride(of);
        let stride = stride.ok_or_else(|| Error::Value("the size is not known".to_owned()))?;
        Ok(Some(Self::number(of.pointer(1), moved(start, count, stride)?.into())))
    }

    /// The number of elements between another pointer and this one; `None` unless both are pointers
    /// or arrays.
    pub(crate) fn distance(&self, other: &Self, scope: &mut Scope<'_, '_>) -> Result<Option<i128>, Error> {
        let (Some((of, start)), Some((other, from))) = (self.pointed(scope)?, other.pointed(scope)?) else {
            return Ok(None);
        };
        let dwarf = dwarf_of(scope)?;
        let (stride, other) = (dwarf.stride(of), dwarf.stride(other));
        let stride = stride.filter(|_| stride == other);
        let stride = stride.ok_or_else(|| Error::Value("pointers to different types".to_owned()))?;
        Ok(Some((i128::from(start) - i128::from(from)) / i128::from(stride)))
    }

    /// Whether it counts elements in additions.
    pub(crate) fn is_pointer(&self, scope: &Scope<'_, '_>) -> bool {
        let shape = dwarf_of(scope).map(|dwarf| dwarf.shape(self.ty));
        matches!(shape, Ok(Shape::Pointer { .. } | Shape::Array { .. }))
    }

    /// Whether it is a structure, except one that stands for a slice or a string.
    pub(crate) fn is_structure(&self, scope: &mut Scope<'_, '_>) -> Result<bool, Error> {
        let is_structure = matches!(dwarf_of(scope)?.shape(self.ty), Shape::Struct);
        Ok(is_structure && self.slice(scope)?.is_none())
    }

    /// As [`Self::elements`], for what is a pointer in C.
    fn pointed(&self, scope: &mut Scope<'_, '_>) -> Result<Option<(Type, u64)>, Error> {
        match dwarf_of(scope)?.shape(self.ty) {
            Shape::Pointer { .. } | Shape::Array { .. } => self.elements(scope),
            _ => Ok(None),
        }
    }

    /// The value as one of another type, as by a cast in C.
    pub(crate) fn cast(value: &Value, ty: Type, scope: &mut Scope<'_, '_>) -> Result<Self, Error> {
        let wrong = || Error::Value(format!("{value} is no value for this type"));
        let integer = || match value.float() {
            Some(float) if value.is_float() => Ok(float as i128),
            _ => value.integer().ok_or_else(wrong),
        };
        let bits = match dwarf_of(scope)?.shape(ty) {
            Shape::Base { encoding: gimli::DW_ATE_float, size } => {
                let float = value.float().ok_or_else(wrong)?;
                match size {
                    4 => (float as f32).to_bits().into(),
                    8 => float.to_bits().into(),
                    16 => value.quad().ok_or_else(wrong)?,
                    _ => return Err(Error::Value(no_float(size))),
                }
            }
            Shape::Base { encoding: gimli::DW_ATE_boolean, .. } => u128::from(value.is_true()),
            Shape::Base { .. } | Shape::Pointer { .. } | Shape::Enum { .. } => integer()?.cast_unsigned(),
            _ => return Err(Error::Value("only scalars and pointers can be cast".to_owned())),
        };
        Ok(Self::number(ty, bits))
    }

    /// The address of the first element of an array, with its type, since casts apply to that.
    pub(crate) fn decayed(self, scope: &mut Scope<'_, '_>) -> Result<Self, Error> {
        match dwarf_of(scope)?.shape(self.ty) {
            Shape::Array { .. } => self.offset(scope, 0)?.ok_or_else(no_pointer),
            _ => Ok(self),
        }
    }

    /// Assigns a value to a scalar.
    pub(crate) fn assign(&self, scope: &mut Scope<'_, '_>, value: &Value) -> Result<(), Error> {
        let wrong = || Error::Value(format!("{value} is no value for this type"));
        let (size, is_float) = match dwarf_of(scope)?.shape(self.ty) {
            Shape::Base { encoding, size } => (size, encoding == gimli::DW_ATE_float),
            Shape::Pointer { size, .. } | Shape::Enum { size, .. } => (size, false),
            Shape::Reference { .. } => return self.element(scope, 0)?.assign(scope, value),
            _ => return Err(Error::Value("only scalars can be changed".to_owned())),
        };
        let width = self.field.map_or(8 * size.min(8) as u32, |field| field.size);
        let bits = match (is_float, size) {
            (true, 4) => u128::from((value.float().ok_or_else(wrong)? as f32).to_bits()),
            (true, 8) => u128::from(value.float().ok_or_else(wrong)?.to_bits()),
            (true, 16) => value.quad().ok_or_else(wrong)?,
            (true, _) => return Err(Error::Value(no_float(size))),
            (false, 1..=8) => {
                let integer = value.integer().filter(|value| crate::value::fits(*value, width));
                integer.ok_or_else(wrong)?.cast_unsigned()
            }
            _ => return Err(wrong()),
        };
        let (bits, count) = match self.field {
            None => (bits & mask(8 * size as u32), size as usize),
            Some(field) => {
                let others = self.bytes(field.bytes(), scope)? & !(mask(field.size) << field.shift);
                (others | (bits & mask(field.size)) << field.shift, field.bytes())
            }
        };
        let merged = |old: &Val, offset: usize| {
            let shift = bits_before(offset);
            let others = bits_of(old)? & !mask(8 * count as u32).checked_shl(shift)?;
            like(old, others | bits.checked_shl(shift)?)
        };
        match self.at {
            At::Memory(address) => scope.write_memory(0, address, &bits.to_le_bytes()[..count]),
            At::Local(index, offset) => {
                let new = merged(&scope.local(index)?, offset).ok_or_else(wrong)?;
                scope.set_local(index, &new)
            }
            At::Global(index, offset) => {
                let new = merged(&scope.global(index)?, offset).ok_or_else(wrong)?;
                scope.set_global(index, &new)
            }
            At::Bytes(_) => Err(Error::Value("the value is computed, so it cannot be changed".to_owned())),
        }
    }
}

impl Field {
    /// The number of bytes that have its bits: at most 9.
    fn bytes(self) -> usize {
        (self.shift + self.size).div_ceil(8) as usize
    }
}

/// Why floats of a size other than 4 and 8 bytes have no value.
fn no_float(size: u64) -> String {
    format!("floats of {size} bytes are not supported")
}

/// The number of bits before an offset in bytes.
fn bits_before(offset: usize) -> u32 {
    u32::try_from(offset.saturating_mul(8)).unwrap_or(u32::MAX)
}

fn mask(bits: u32) -> u128 {
    1_u128.checked_shl(bits).map_or(u128::MAX, |end| end - 1)
}

/// The address that is `count` times `stride` after another one.
fn moved(start: u64, count: i128, stride: u64) -> Result<u64, Error> {
    let address = count.checked_mul(stride.into()).and_then(|offset| offset.checked_add(start.into()));
    let address = address.and_then(|address| u64::try_from(address).ok());
    address.ok_or_else(|| Error::Value("the address is out of range".to_owned()))
}

fn bits_of(value: &Val) -> Option<u128> {
    Some(match value {
        Val::I32(value) => value.cast_unsigned().into(),
        Val::I64(value) => value.cast_unsigned().into(),
        Val::F32(bits) => (*bits).into(),
        Val::F64(bits) => (*bits).into(),
        Val::V128(bits) => *bits,
        _ => return None,
    })
}

/// A value with these bits, of the type of another one.
fn like(old: &Val, bits: u128) -> Option<Val> {
    Some(match old {
        Val::I32(_) => Val::I32(bits as i32),
        Val::I64(_) => Val::I64(bits as i64),
        Val::F32(_) => Val::F32(bits as u32),
        Val::F64(_) => Val::F64(bits as u64),
        Val::V128(_) => Val::V128(bits),
        _ => return None,
    })
}

/// The elements of an array or slice; `element` returns the one at an offset in bytes.
fn elements_of(
    (of, count): (Type, u64),
    scope: &mut Scope<'_, '_>,
    nested: usize,
    rest: &mut Rest,
    element: impl Fn(u64, &mut Scope<'_, '_>) -> Result<Object, Error>,
) -> Result<Value, Error> {
    let size = dwarf_of(scope)?.size_of(of);
    let mut text = String::from("{");
    for index in 0..count {
        text += if index == 0 { "" } else { ", " };
        let Some(left) = rest.elements.checked_sub(1) else {
            text += "...";
            break;
        };
        rest.elements = left;
        let element = element(size.saturating_mul(index), scope)?;
        text += &element.shown(scope, nested + 1, rest)?.to_string();
    }
    Ok(Value::Text(text + "}"))
}

fn is_character(encoding: gimli::DwAte) -> bool {
    matches!(encoding, gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF)
}

/// A character in quotes, as in C.
fn character(code: u8) -> String {
    match code {
        b'\'' | b'\\' => format!("'\\{}'", char::from(code)),
        b' '..=b'~' => format!("'{}'", char::from(code)),
        b'\n' => "'\\n'".to_owned(),
        b'\r' => "'\\r'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        _ => format!("'\\{code:03o}'"),
    }
}

fn scalar(encoding: gimli::DwAte, width: u32, bits: u64) -> Value {
    let unused = 64 - width.clamp(1, 64);
    let signed = (bits << unused).cast_signed() >> unused;
    match encoding {
        gimli::DW_ATE_float if width == 32 => Value::F32(bits as u32),
        gimli::DW_ATE_float => Value::F64(bits),
        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => match i32::try_from(signed) {
            Ok(small) if width <= 32 => Value::I32(small),
            _ => Value::I64(signed),
        },
        _ => Value::Unsigned(bits),
    }
}

/// The characters up to a zero, in quotes.
fn string(address: u64, scope: &Scope<'_, '_>) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while bytes.len() < MAX_SHOWN as usize
        && scope.read_memory(0, address.wrapping_add(bytes.len() as u64), &mut byte).is_ok()
        && byte[0] != 0
    {
        bytes.push(byte[0]);
    }
    format!("{:?}", String::from_utf8_lossy(&bytes))
}

fn characters(address: u64, count: u64, scope: &Scope<'_, '_>) -> String {
    let mut bytes = vec![0; count.min(MAX_SHOWN) as usize];
    match scope.read_memory(0, address, &mut bytes) {
        Ok(()) => {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            format!("{:?}", String::from_utf8_lossy(&bytes[..end]))
        }
        Err(error) => format!("<{error}>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_after_a_local_are_not_in_it() {
        assert_eq!(bits_before(3), 24);
        // 32 bits would count it as 0.
        for offset in [1 << 29, 1 << 32, usize::MAX] {
            assert_eq!(1_u128.checked_shr(bits_before(offset)), None, "{offset}");
        }
    }
}
