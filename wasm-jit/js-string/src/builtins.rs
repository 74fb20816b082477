//! The functions. Indices and code units are unsigned, as in the proposal.

use std::cmp::Ordering;
use std::io;

use wasm_jit::{AnyRef, AsContextMut, Caller, Error, ExternRef, Trap, WasmBacktrace};

use super::arguments::{array, units, units_or_null};
use super::string::{JsString, MAX_LENGTH, StringTooLong};

/// The string itself.
pub(super) fn cast(string: Option<ExternRef>) -> Result<ExternRef, Error> {
    units(&string)?;
    Ok(string.expect("it has units"))
}

/// Whether the value is a string.
pub(super) fn test(string: Option<ExternRef>) -> u32 {
    string.is_some_and(|value| JsString::from_extern(&value).is_some()).into()
}

/// The string of these elements of an array.
pub(super) fn from_char_code_array<T: 'static>(
    mut caller: Caller<'_, T>,
    elements: Option<AnyRef>,
    start: u32,
    end: u32,
) -> Result<ExternRef, Error> {
    let elements = array(&caller, elements)?;
    if start > end || end > elements.len(&caller) {
        return Err(Trap::ArrayOutOfBounds.into());
    }
    let mut string = room(&mut caller, (end - start) as usize)?;
    let elements: &[u16] = elements.elements(&caller).expect("the function's type permits no others");
    string.extend_from_slice(&elements[start as usize..end as usize]);
    Ok(JsString::from(string).into())
}

/// Writes the string to an array, starting at this index. Returns its length.
pub(super) fn into_char_code_array<T: 'static>(
    mut caller: Caller<'_, T>,
    string: Option<ExternRef>,
    elements: Option<AnyRef>,
    start: u32,
) -> Result<u32, Error> {
    let elements = array(&caller, elements)?;
    let units = units(&string)?;
    let place = start as usize..start as usize + units.len();
    let all: &mut [u16] = elements.elements_mut(&mut caller).expect("the function's type permits no others");
    match all.get_mut(place) {
        Some(place) => place.copy_from_slice(units),
        None => return Err(Trap::ArrayOutOfBounds.into()),
    }
    Ok(units.len() as u32)
}

/// The string that consists of the lower 16 bits.
pub(super) fn from_char_code<T: 'static>(mut caller: Caller<'_, T>, code: u32) -> Result<ExternRef, Error> {
    string_of(&mut caller, &[code as u16])
}

/// The string of this code point, which may be a surrogate.
pub(super) fn from_code_point<T: 'static>(
    mut caller: Caller<'_, T>,
    code_point: u32,
) -> Result<ExternRef, Error> {
    if let Ok(unit) = u16::try_from(code_point) {
        return string_of(&mut caller, &[unit]);
    }
    match char::from_u32(code_point) {
        Some(character) => string_of(&mut caller, character.encode_utf16(&mut [0; 2])),
        None => Err(Trap::InvalidCodePoint.into()),
    }
}

/// The code unit at an index.
pub(super) fn char_code_at(string: Option<ExternRef>, index: u32) -> Result<u32, Error> {
    match units(&string)?.get(index as usize) {
        Some(unit) => Ok((*unit).into()),
        None => Err(Trap::StringOutOfBounds.into()),
    }
}

/// The code point that begins at an index: that of a surrogate pair, or else the code unit.
pub(super) fn code_point_at(string: Option<ExternRef>, index: u32) -> Result<u32, Error> {
    let rest = units(&string)?.get(index as usize..).unwrap_or_default();
    let Some(first) = rest.first() else { return Err(Trap::StringOutOfBounds.into()) };
    // At most two units are decoded, and only one if they are not a pair.
    let character = char::decode_utf16(rest.iter().copied()).next().and_then(Result::ok);
    Ok(character.map_or((*first).into(), u32::from))
}

/// The number of code units.
pub(super) fn length(string: Option<ExternRef>) -> Result<u32, Error> {
    Ok(units(&string)?.len() as u32)
}

/// One string, followed by another one.
pub(super) fn concat<T: 'static>(
    mut caller: Caller<'_, T>,
    first: Option<ExternRef>,
    second: Option<ExternRef>,
) -> Result<ExternRef, Error> {
    let (start, end) = (units(&first)?, units(&second)?);
    match (first.as_ref(), second.as_ref()) {
        (Some(first), _) if end.is_empty() => return Ok(first.clone()),
        (_, Some(second)) if start.is_empty() => return Ok(second.clone()),
        _ => {}
    }
    let mut string = room(&mut caller, start.len() + end.len())?;
    string.extend_from_slice(start);
    string.extend_from_slice(end);
    Ok(JsString::from(string).into())
}

/// The part between two indices, the second of which may be beyond the string. Empty if there is no
/// such part.
pub(super) fn substring<T: 'static>(
    mut caller: Caller<'_, T>,
    string: Option<ExternRef>,
    start: u32,
    end: u32,
) -> Result<ExternRef, Error> {
    let units = units(&string)?;
    let end = units.len().min(end as usize);
    let part = units.get(start as usize..end).unwrap_or_default();
    match &string {
        Some(string) if part.len() == units.len() => Ok(string.clone()),
        _ => string_of(&mut caller, part),
    }
}

/// Whether both are the same sequence, or both are null.
pub(super) fn equals(first: Option<ExternRef>, second: Option<ExternRef>) -> Result<u32, Error> {
    Ok((units_or_null(&first)? == units_or_null(&second)?).into())
}

/// -1, 0 or 1, if the first string is less than, equal to, or greater than the second one, by code
/// units.
pub(super) fn compare(first: Option<ExternRef>, second: Option<ExternRef>) -> Result<i32, Error> {
    Ok(match units(&first)?.cmp(units(&second)?) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

/// A new string of these units.
fn string_of<T: 'static>(caller: &mut Caller<'_, T>, units: &[u16]) -> Result<ExternRef, Error> {
    let mut string = room(caller, units.len())?;
    string.extend_from_slice(units);
    Ok(JsString::from(string).into())
}

/// Room for the units of a string, if the limits permit it.
fn room<T: 'static>(caller: &mut Caller<'_, T>, length: usize) -> Result<Vec<u16>, Error> {
    if length > MAX_LENGTH {
        return Err(Error::host(StringTooLong));
    }
    caller.as_context_mut().reserve(JsString::memory(length))?;
    let mut units = Vec::new();
    let no_memory = |_| Error::Memory {
        purpose: "a string",
        source: io::ErrorKind::OutOfMemory.into(),
        backtrace: WasmBacktrace::default(),
    };
    units.try_reserve_exact(length).map_err(no_memory)?;
    Ok(units)
}
