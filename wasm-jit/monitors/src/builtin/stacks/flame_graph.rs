//! A flame graph: an image in which each function is a box above its caller, as wide as its share.
//!
//! The file needs no network and no other file. A click on a box enlarges it, a click on the lowest
//! one shows everything; pointing at a box shows its figures.

use std::fmt::Write;

use wasm_jit::printable;

use super::Stacks;

const WIDTH: f64 = 1200.0;
const HEIGHT: usize = 17;
/// Narrower boxes are left out.
const NARROWEST: f64 = 0.15;
/// The width of a character.
const CHARACTER: f64 = 6.9;

/// Enlarges boxes.
const SCRIPT: &str = r#"
const boxes = [...document.querySelectorAll('g')].map(g => ({ g, x: +g.dataset.x, w: +g.dataset.w,
    y: +g.dataset.y, rect: g.querySelector('rect'), text: g.querySelector('text'), name: g.dataset.n }));
function show(chosen) {
    const scale = WIDTH / chosen.w;
    for (const box of boxes) {
        const around = box.x <= chosen.x + 1e-6 && box.x + box.w >= chosen.x + chosen.w - 1e-6;
        const below = around && box.y > chosen.y;
        const x = below ? 0 : (box.x - chosen.x) * scale, w = below ? WIDTH : box.w * scale;
        const hidden = x + w < 0.1 || x > WIDTH - 0.1 || (!around && box.y > chosen.y);
        box.g.style.display = hidden ? 'none' : '';
        box.g.style.opacity = below ? 0.5 : 1;
        box.rect.setAttribute('x', x);
        box.rect.setAttribute('width', w);
        box.text.setAttribute('x', x + 3);
        const fits = Math.floor((w - 6) / CHARACTER);
        box.text.textContent = fits < 3 ? '' : box.name.length <= fits ? box.name : box.name.slice(0, fits - 2) + '..';
    }
}
for (const box of boxes) box.g.addEventListener('click', () => show(box));
"#;

impl Stacks {
    pub(super) fn flame_graph(&self) -> String {
        let totals = self.totals();
        let all: u64 = self
            .nodes
            .iter()
            .zip(&totals)
            .filter(|(node, _)| node.parent.is_none())
            .map(|(_, total)| total)
            .sum();
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut roots = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            node.parent.map_or(&mut roots, |parent| &mut children[parent]).push(at);
        }
        let scale = WIDTH / all.max(1) as f64;
        // The node, its left edge, and its depth.
        let mut placed: Vec<(usize, f64, usize)> = Vec::new();
        let mut open = Vec::new();
        let place = |of: &[usize], mut x: f64, depth: usize, open: &mut Vec<_>| {
            for child in of {
                let width = totals[*child] as f64 * scale;
                if width >= NARROWEST {
                    open.push((*child, x, depth));
                }
                x += width;
            }
        };
        place(&roots, 0.0, 1, &mut open);
        while let Some((node, x, depth)) = open.pop() {
            placed.push((node, x, depth));
            place(&children[node], x, depth + 1, &mut open);
        }
        let deepest = placed.iter().map(|(.., depth)| *depth).max().unwrap_or(0);
        let height = (deepest + 1) * HEIGHT + 30;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{}\" y=\"16\" text-anchor=\"middle\" font-size=\"13\">{} in {}</text>\n",
            WIDTH / 2.0,
            escaped(&self.title()),
            self.unit,
        );
        let mut add = |name: &str, total: u64, count: Option<u64>, x: f64, depth: usize| {
            let y = height - (depth + 1) * HEIGHT - 5;
            let width = total as f64 * scale;
            let share = 100.0 * total as f64 / all.max(1) as f64;
            let counted = count.map_or(String::new(), |count| format!(", {count} {}", self.counted));
            let name = escaped(&printable(name));
            let _ = writeln!(
                out,
                "<g data-x=\"{x:.3}\" data-w=\"{width:.3}\" data-y=\"{y}\" data-n=\"{name}\">\
                 <title>{name}: {total} {} ({share:.2}%){counted}</title>\
                 <rect x=\"{x:.3}\" y=\"{y}\" width=\"{width:.3}\" height=\"{}\" fill=\"{}\" rx=\"1\"/>\
                 <text x=\"{:.3}\" y=\"{}\">{}</text></g>",
                self.unit,
                HEIGHT - 1,
                color(&name),
                x + 3.0,
                y + HEIGHT - 5,
                shortened(&name, width),
            );
        };
        if all > 0 {
            add("all", all, None, 0.0, 0);
        }
        for (node, x, depth) in placed {
            let Stacks { functions, nodes, .. } = self;
            add(&functions[nodes[node].function].name, totals[node], Some(nodes[node].count), x, depth);
        }
        let script = SCRIPT.replace("WIDTH", &WIDTH.to_string()).replace("CHARACTER", &CHARACTER.to_string());
        let _ = writeln!(out, "<script><![CDATA[{script}]]></script>\n</svg>");
        out
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // Other control characters do not occur in names, and are not allowed in XML.
            _ if character.is_control() => out.push(' '),
            _ => out.push(character),
        }
    }
    out
}

/// The part of an escaped name that fits into a box.
fn shortened(name: &str, width: f64) -> String {
    let fits = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    // An escaped character counts as one.
    let characters: Vec<&str> = split_escaped(name);
    match characters.len() {
        _ if fits < 3 => String::new(),
        length if length <= fits => name.to_owned(),
        _ => characters[..fits - 2].concat() + "..",
    }
}

fn split_escaped(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut all = Vec::new();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '&' => rest.find(';').map_or(1, |end| end + 1),
            _ => first.len_utf8(),
        };
        let (character, after) = rest.split_at(length);
        all.push(character);
        rest = after;
    }
    all
}

/// A warm color, always the same for the same name.
fn color(name: &str) -> String {
    let hash = name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    format!("rgb({},{},{})", 205 + hash % 50, 80 + (hash >> 8) % 150, (hash >> 16) % 55)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_as_wide_as_their_shares() {
        let svg = super::super::example().flame_graph();
        let widths = |name: &str| -> Vec<&str> {
            let of_name = format!("data-n=\"{name}\"");
            let lines = svg.lines().filter(|line| line.contains(&of_name));
            lines.map(|line| line.split("data-w=\"").nth(1).unwrap().split('"').next().unwrap()).collect()
        };
        assert_eq!(widths("all"), ["1200.000"]);
        assert_eq!(widths("main"), ["1200.000"]);
        assert_eq!(widths("a"), ["540.000"], "the other one is too narrow");
        assert_eq!(widths("b;c"), ["180.000"]);
        assert_eq!(widths("&lt;d&gt;"), ["60.000"]);
        assert!(svg.contains("<title>a: 45 nanoseconds (45.00%), 2 calls</title>"), "{svg}");
    }

    #[test]
    fn names_are_shortened_by_characters() {
        assert_eq!(shortened("&lt;abcdef&gt;", 6.0 + 8.0 * CHARACTER + 1.0), "&lt;abcdef&gt;");
        assert_eq!(shortened("&lt;abcdef&gt;", 6.0 + 5.0 * CHARACTER + 1.0), "&lt;ab..");
        assert_eq!(shortened("abcdef", 10.0), "");
    }
}
