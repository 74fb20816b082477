//! Vector instructions: their operands and results, by name.

use crate::monitor_module::of_proposals;

/// The instructions, in the format of the table of the others: `i32x4.shl(iv;v)`.
pub(super) fn entries() -> impl Iterator<Item = String> {
    let all = of_proposals(&["simd", "relaxed_simd"]);
    all.map(|(name, operands)| {
        let types = types(&name, operands.unwrap_or(0));
        format!("{name}({types})")
    })
}

fn types(name: &str, operands: usize) -> String {
    let (shape, operation) = name.split_once('.').unwrap_or((name, ""));
    let lane = match shape {
        "i64x2" => 'I',
        "f32x4" => 'f',
        "f64x2" => 'F',
        _ if operation.ends_with("_lane_u") => 'u',
        _ => 'i',
    };
    match operation {
        "splat" => format!("{lane};v"),
        "replace_lane" => format!("{lane}v;v"),
        "extract_lane" | "extract_lane_s" | "extract_lane_u" => format!("v;{lane}"),
        "shl" | "shr_s" | "shr_u" => "iv;v".to_owned(),
        "any_true" | "all_true" | "bitmask" => "v;i".to_owned(),
        _ if operation.starts_with("store") => "va".to_owned(),
        _ if operation.starts_with("load") && operation.ends_with("_lane") => "va;v".to_owned(),
        _ if operation.starts_with("load") => "a;v".to_owned(),
        _ => format!("{};v", "v".repeat(operands)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_from_names() {
        let all: Vec<String> = entries().collect();
        for expected in [
            "v128.const(;v)",
            "v128.load8_lane(va;v)",
            "v128.store(va)",
            "i8x16.extract_lane_u(v;u)",
            "i64x2.splat(I;v)",
            "f32x4.replace_lane(fv;v)",
            "v128.bitselect(vvv;v)",
            "i16x8.shr_s(iv;v)",
            "f64x2.relaxed_madd(vvv;v)",
            "i32x4.add(vv;v)",
        ] {
            assert!(all.iter().any(|entry| entry == expected), "{expected}");
        }
    }
}
