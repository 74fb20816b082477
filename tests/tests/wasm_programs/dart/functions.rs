//! The functions of the host that Dart's formatter imports.

use std::sync::{Arc, Mutex};

use wasm_jit::{Error, Val};

use super::host::{
    HostFunction, Js, Pattern, array, call_export, exec, externalized, find, locked, number, pattern, split,
    string, text, truth, units,
};

/// The function that the module imports by these names, if this host has it.
pub(super) fn function(module: &str, name: &str) -> Option<HostFunction> {
    match module {
        "wasm:js-string" => string_function(name),
        "dart2wasm" => dart_function(name),
        _ => None,
    }
}

/// The builtin functions on strings of JavaScript.
fn string_function(name: &str) -> Option<HostFunction> {
    Some(match name {
        "charCodeAt" => |_, arguments, results| {
            let [string, at] = arguments else { unreachable!("two parameters") };
            results[0] = Val::I32(units(string)[at.unwrap_i32() as usize].into());
            Ok(())
        },
        "compare" => |_, arguments, results| {
            results[0] = Val::I32(units(&arguments[0]).cmp(&units(&arguments[1])) as i32);
            Ok(())
        },
        "concat" => |_, arguments, results| {
            results[0] = text(&[units(&arguments[0]), units(&arguments[1])].concat());
            Ok(())
        },
        "equals" => |_, arguments, results| {
            results[0] = truth(match (&arguments[0], &arguments[1]) {
                (Val::ExternRef(None), other) | (other, Val::ExternRef(None)) => {
                    matches!(other, Val::ExternRef(None))
                }
                (one, other) => units(one) == units(other),
            });
            Ok(())
        },
        "length" => |_, arguments, results| {
            results[0] = Val::I32(units(&arguments[0]).len() as i32);
            Ok(())
        },
        "substring" => |_, arguments, results| {
            let units = units(&arguments[0]);
            let end = (arguments[2].unwrap_i32() as u32 as usize).min(units.len());
            let start = (arguments[1].unwrap_i32() as u32 as usize).min(end);
            results[0] = text(&units[start..end]);
            Ok(())
        },
        "test" => |_, arguments, results| {
            results[0] = truth(matches!(Js::of(&arguments[0]), Some(Js::Text(_))));
            Ok(())
        },
        "fromCharCodeArray" => |mut caller, arguments, results| {
            let array = externalized(&mut caller, &arguments[0])?;
            let mut units = Vec::new();
            for at in arguments[1].unwrap_i32()..arguments[2].unwrap_i32() {
                let mut unit = [Val::I32(0)];
                call_export(&mut caller, "$wasmI16ArrayGet", &[array.clone(), Val::I32(at)], &mut unit)?;
                units.push(unit[0].unwrap_i32() as u16);
            }
            results[0] = text(&units);
            Ok(())
        },
        "intoCharCodeArray" => |mut caller, arguments, results| {
            let units = units(&arguments[0]);
            let array = externalized(&mut caller, &arguments[1])?;
            for (at, unit) in (arguments[2].unwrap_i32()..).zip(&*units) {
                let arguments = [array.clone(), Val::I32(at), Val::I32((*unit).into())];
                call_export(&mut caller, "$wasmI16ArraySet", &arguments, &mut [])?;
            }
            results[0] = Val::I32(units.len() as i32);
            Ok(())
        },
        _ => return None,
    })
}

/// The functions that the compiler generates, by their numbers in this module.
fn dart_function(name: &str) -> Option<HostFunction> {
    language_function(name).or_else(|| array_function(name)).or_else(|| text_function(name))
}

/// Objects, closures and conversions.
fn language_function(name: &str) -> Option<HostFunction> {
    Some(match name {
        // An empty object, and assignments of its fields.
        "_181" => |_, _, results| {
            results[0] = Js::Object(Arc::default()).into();
            Ok(())
        },
        "_182" => |_, arguments, _| assign(arguments, "success"),
        "_183" => |_, arguments, _| assign(arguments, "code"),
        "_184" => |_, arguments, _| assign(arguments, "error"),
        // The formatter becomes a method of the application.
        "_185" => |mut caller, arguments, _| {
            let Some(Js::Function(closure)) = Js::of(&arguments[0]) else { panic!("no function") };
            caller.data_mut().formatter = Some(closure);
            Ok(())
        },
        // A function that calls a closure of Dart.
        "_186" => |_, arguments, results| {
            results[0] = Js::Function(arguments[0].clone()).into();
            Ok(())
        },
        // Whether a value is undefined.
        "_210" => |_, arguments, results| {
            results[0] = truth(matches!(Js::of(&arguments[0]), Some(Js::Undefined)));
            Ok(())
        },
        // Numbers and booleans from values, and values from them.
        "_217" => |_, arguments, results| {
            results[0] = Val::from(number(&arguments[0]));
            Ok(())
        },
        "_218" => |_, arguments, results| {
            results[0] = Js::Number(number(&arguments[0])).into();
            Ok(())
        },
        "_219" => |_, arguments, results| {
            results[0] = Val::I32(number(&arguments[0]) as i32);
            Ok(())
        },
        "_220" => |_, arguments, results| {
            results[0] = Js::Bool(arguments[0].unwrap_i32() != 0).into();
            Ok(())
        },
        // The kind of a value, as a number.
        "_239" => |_, arguments, results| {
            results[0] = Val::I32(match Js::of(&arguments[0]) {
                Some(Js::Undefined) => 1,
                Some(Js::Bool(_)) => 2,
                Some(Js::Number(_)) => 3,
                Some(Js::Text(_)) => 4,
                Some(Js::Array(_)) => 5,
                _ => 19,
            });
            Ok(())
        },
        // Whether two values are the same.
        "_112" => |_, arguments, results| {
            results[0] = truth(match (Js::of(&arguments[0]), Js::of(&arguments[1])) {
                (Some(Js::Text(one)), Some(Js::Text(other))) => one == other,
                (Some(Js::Number(one)), Some(Js::Number(other))) => one.to_bits() == other.to_bits(),
                (Some(Js::Bool(one)), Some(Js::Bool(other))) => one == other,
                _ => panic!("{arguments:?} are compared"),
            });
            Ok(())
        },
        // The text of the stack, of which only its being there matters.
        "_78" => |_, _, results| {
            results[0] = Js::text("").into();
            Ok(())
        },
        // The address of the page: there is none.
        "_82" => |_, _, results| {
            results[0] = Val::ExternRef(None);
            Ok(())
        },
        // The object of mathematical functions, and its source of random numbers.
        "_272" => |_, _, results| {
            results[0] = Js::Math.into();
            Ok(())
        },
        "_269" => |_, _, results| {
            results[0] = Js::Number(0.5).into();
            Ok(())
        },
        _ => return None,
    })
}

/// Arrays: those of JavaScript.
fn array_function(name: &str) -> Option<HostFunction> {
    Some(match name {
        // Its length, as a value or a float.
        "_38" => |_, arguments, results| {
            results[0] = Js::Number(locked(&array(&arguments[0])).items.len() as f64).into();
            Ok(())
        },
        "_124" => |_, arguments, results| {
            results[0] = Val::from(locked(&array(&arguments[0])).items.len() as f64);
            Ok(())
        },
        // One of its items.
        "_40" | "_126" => |_, arguments, results| {
            let items = array(&arguments[0]);
            let item = locked(&items).items.get(number(&arguments[1]) as usize).cloned();
            results[0] = item.unwrap_or_else(|| Js::Undefined.into());
            Ok(())
        },
        // Whether a value is one.
        "_113" => |_, arguments, results| {
            results[0] = truth(matches!(Js::of(&arguments[0]), Some(Js::Array(_))));
            Ok(())
        },
        // Where the match began whose groups it has.
        "_257" => |_, arguments, results| {
            results[0] = Js::Number(locked(&array(&arguments[0])).index as f64).into();
            Ok(())
        },
        _ => return None,
    })
}

/// Texts, and regular expressions.
fn text_function(name: &str) -> Option<HostFunction> {
    Some(match name {
        // The text of a value, and of an integer.
        "_235" => |_, arguments, results| {
            results[0] = Js::text(&string(&arguments[0])).into();
            Ok(())
        },
        "_273" => |_, arguments, results| {
            assert_eq!(arguments[1].unwrap_i32(), 10, "the base of a number");
            results[0] = Js::text(&arguments[0].unwrap_i32().to_string()).into();
            Ok(())
        },
        "_103" => |_, arguments, results| {
            results[0] = Js::text(&string(&arguments[0]).to_lowercase()).into();
            Ok(())
        },
        "_105" => |_, arguments, results| {
            results[0] = Js::text(string(&arguments[0]).trim()).into();
            Ok(())
        },
        "_108" => |_, arguments, results| {
            results[0] = text(&units(&arguments[0]).repeat(arguments[1].unwrap_i32() as usize));
            Ok(())
        },
        // Where a text contains another, from a position on, or up to one.
        "_109" => |_, arguments, results| {
            let (units, wanted) = (units(&arguments[0]), units(&arguments[1]));
            results[0] = find(&units, &wanted, number(&arguments[2]) as usize..=units.len());
            Ok(())
        },
        "_110" => |_, arguments, results| {
            let (units, wanted) = (units(&arguments[0]), units(&arguments[1]));
            results[0] = find(&units, &wanted, (0..=number(&arguments[2]) as usize).rev());
            Ok(())
        },
        "_111" => |_, arguments, results| {
            results[0] = Js::array(split(&units(&arguments[0]), &units(&arguments[1]))).into();
            Ok(())
        },
        // A regular expression, or the message why it is none.
        "_205" => |_, arguments, results| {
            results[0] = match Pattern::new(&string(&arguments[0]), string(&arguments[1])) {
                Ok(pattern) => Js::Pattern(Arc::new(Mutex::new(pattern))).into(),
                Err(message) => Js::text(&message).into(),
            };
            Ok(())
        },
        "_206" => |_, arguments, results| {
            results[0] = exec(&mut locked(&pattern(&arguments[0])), &units(&arguments[1]));
            Ok(())
        },
        // Whether a value is one, whether it has a flag, and where the next search begins.
        "_215" => |_, arguments, results| {
            results[0] = truth(matches!(Js::of(&arguments[0]), Some(Js::Pattern(_))));
            Ok(())
        },
        "_260" => |_, arguments, results| flag(arguments, results, 'm'),
        "_261" => |_, arguments, results| flag(arguments, results, 'i'),
        "_262" => |_, arguments, results| flag(arguments, results, 'u'),
        "_263" => |_, arguments, results| flag(arguments, results, 's'),
        "_264" => |_, arguments, _| {
            locked(&pattern(&arguments[0])).last = number(&arguments[1]) as usize;
            Ok(())
        },
        _ => return None,
    })
}

/// Sets the field of an object.
fn assign(arguments: &[Val], field: &'static str) -> Result<(), Error> {
    let Some(Js::Object(object)) = Js::of(&arguments[0]) else { panic!("{arguments:?}: no object") };
    locked(&object).insert(field, arguments[1].clone());
    Ok(())
}

/// Whether a regular expression has a flag.
fn flag(arguments: &[Val], results: &mut [Val], flag: char) -> Result<(), Error> {
    results[0] = Js::Bool(locked(&pattern(&arguments[0])).flags.contains(flag)).into();
    Ok(())
}
