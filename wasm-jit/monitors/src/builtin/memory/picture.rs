//! The heat map as an image: a row for each page that was accessed, a column for each line of the
//! page.

use std::sync::OnceLock;

use plotters::prelude::{
    BLACK, DrawingBackend, HSLColor, IntoDrawingArea, Rectangle, SVGBackend, Text, WHITE,
};
use plotters::style::{Color, FontStyle, IntoFont, register_font};

use super::heat::{LINES, PAGE, Page};

/// Maximum number of rows of the image.
const ROWS: usize = 256;

const FONT: &str = "sans-serif";

/// The space to the left of the cells and above them, and the size of a cell.
const LEFT: i32 = 150;
const TOP: i32 = 40;
const CELL: (i32, i32) = (10, 8);

/// A row of the image: consecutive pages, and the accesses to their lines.
struct Row {
    memory: u32,
    first: u64,
    lines: [u64; LINES],
}

/// Draws the pages as SVG.
pub(super) fn draw(pages: &[Page]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail; the font is part of the program.
    let _ = draw_rows(&rows(pages), &mut out);
    out
}

/// The pages, several in a row if there are many.
fn rows(pages: &[Page]) -> Vec<Row> {
    let in_row = pages.len().div_ceil(ROWS).max(1);
    let row = |pages: &[Page]| {
        let mut lines = [0; LINES];
        for page in pages {
            lines.iter_mut().zip(page.lines).for_each(|(sum, count)| *sum += count);
        }
        Row { memory: pages[0].memory, first: pages[0].number, lines }
    };
    pages
        .chunk_by(|one, next| one.memory == next.memory)
        .flat_map(|pages| pages.chunks(in_row))
        .map(row)
        .collect()
}

fn draw_rows(rows: &[Row], out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    // Machines without a screen have no fonts.
    REGISTERED.get_or_init(|| {
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    let hottest = rows.iter().flat_map(|row| row.lines).max().unwrap_or(0);
    let size = (LEFT + CELL.0 * LINES as i32 + 20, TOP + CELL.1 * rows.len().max(1) as i32 + 20);
    let area = SVGBackend::with_string(out, (size.0 as u32, size.1 as u32)).into_drawing_area();
    let failed = |error: plotters::drawing::DrawingAreaErrorKind<
        <SVGBackend<'_> as DrawingBackend>::ErrorType,
    >| error.to_string();
    area.fill(&WHITE).map_err(failed)?;
    let text = |text: String, at: (i32, i32)| Text::new(text, at, (FONT, 11).into_font().color(&BLACK));
    let caption = format!("Accesses of each line of 64 bytes, by page of {PAGE} bytes; at most {hottest}");
    area.draw(&text(caption, (LEFT, 14))).map_err(failed)?;
    for (number, row) in (0..).zip(rows) {
        let y = TOP + CELL.1 * number;
        // Only some of the rows have a label.
        if number % 2 == 0 {
            let memory = if row.memory == 0 { String::new() } else { format!("{}: ", row.memory) };
            area.draw(&text(format!("{memory}{:#x}", row.first * PAGE), (10, y))).map_err(failed)?;
        }
        for (column, count) in (0..).zip(row.lines).filter(|(_, count)| *count > 0) {
            let x = LEFT + CELL.0 * column;
            let cell = Rectangle::new([(x, y), (x + CELL.0, y + CELL.1)], color(count, hottest).filled());
            area.draw(&cell).map_err(failed)?;
        }
    }
    area.present().map_err(failed)?;
    Ok(())
}

/// From light yellow to dark red, by the logarithm of the count.
fn color(count: u64, hottest: u64) -> HSLColor {
    let heat = (count as f64).ln_1p() / (hottest as f64).ln_1p();
    HSLColor(0.16 * (1.0 - heat), 1.0, 0.85 - 0.55 * heat)
}
