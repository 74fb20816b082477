//! Histograms: maps whose keys are buckets, or tuples that end with a bucket.
//!
//! A map with the key `(str, log2)` is one histogram for each string. Each has its own total, and
//! its longest bar belongs to its largest count.

use super::report::Value;

/// The length of the longest bar, in characters.
const WIDTH: f64 = 40.0;

/// A row of a histogram.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Bar<'a> {
    /// The bucket, or the tuple that ends with it.
    pub key: &'a Value,
    /// The count of the bucket.
    pub count: &'a Value,
    /// The bucket's share of the histogram's total, from 0 to 1.
    pub share: f64,
    /// A bar of characters, whose length is proportional to the count.
    pub text: String,
}

/// The rows of the histograms that a map consists of: one histogram after the other, in descending
/// order of their totals, each with its buckets in ascending order. `None` if the map is not a
/// histogram: its keys do not end with a bucket, or a value is not an unsigned integer.
pub fn histogram(entries: &[(Value, Value)]) -> Option<Vec<Bar<'_>>> {
    struct Row<'a> {
        of: &'a [Value],
        start: u64,
        key: &'a Value,
        count: &'a Value,
        number: u128,
    }
    let mut rows = Vec::with_capacity(entries.len());
    for (key, count) in entries {
        let (of, bucket) = match key {
            Value::Tuple(fields) => fields.split_last().map(|(bucket, of)| (of, bucket))?,
            bucket => (&[][..], bucket),
        };
        let (Value::Bucket(start, _), Value::Int(number)) = (bucket, count) else { return None };
        rows.push(Row { of, start: *start, key, count, number: u128::try_from(*number).ok()? });
    }
    if rows.is_empty() {
        return None;
    }
    // Sorted by text, since floats have no order: rows of one histogram are next to each other.
    rows.sort_by_cached_key(|row| (format!("{:?}", row.of), row.start));
    let mut histograms: Vec<(u128, &[Row<'_>])> = Vec::new();
    for rows in rows.chunk_by(|one, next| one.of == next.of) {
        histograms.push((rows.iter().map(|row| row.number).sum(), rows));
    }
    histograms.sort_by_key(|(total, _)| std::cmp::Reverse(*total));
    let mut bars = Vec::with_capacity(rows.len());
    for (total, rows) in histograms {
        let longest = rows.iter().map(|row| row.number).max().unwrap_or(0).max(1);
        bars.extend(rows.iter().map(|row| Bar {
            key: row.key,
            count: row.count,
            share: row.number as f64 / total.max(1) as f64,
            text: "@".repeat((row.number as f64 / longest as f64 * WIDTH).round() as usize),
        }));
    }
    Some(bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(start: u64) -> Value {
        Value::Bucket(start, i128::from(start) * 2)
    }

    #[test]
    fn bars_are_in_the_order_of_their_buckets() {
        let entries = [(bucket(8), Value::Int(1)), (bucket(2), Value::Int(2)), (bucket(4), Value::Int(1))];
        let bars = histogram(&entries).unwrap();
        let found: Vec<_> = bars.iter().map(|bar| (bar.key, bar.share, bar.text.len())).collect();
        assert_eq!(found, [(&bucket(2), 0.5, 40), (&bucket(4), 0.25, 20), (&bucket(8), 0.25, 20)]);
    }

    #[test]
    fn tuples_are_several_histograms() {
        let key = |name: &str, start| Value::Tuple(vec![Value::Text(name.to_owned()), bucket(start)]);
        let entries = [(key("a", 2), 1), (key("b", 4), 30), (key("a", 1), 2), (key("b", 2), 10)];
        let entries = entries.map(|(key, count)| (key, Value::Int(count)));
        let found: Vec<_> =
            histogram(&entries).unwrap().into_iter().map(|bar| (bar.key, bar.share)).collect();
        let expected = [
            (&key("b", 2), 0.25),
            (&key("b", 4), 0.75),
            (&key("a", 1), 2.0 / 3.0),
            (&key("a", 2), 1.0 / 3.0),
        ];
        assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), expected.map(|(key, _)| key));
        for ((_, found), (_, expected)) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found}");
        }
    }

    #[test]
    fn other_maps_are_no_histograms() {
        assert_eq!(histogram(&[]), None);
        assert_eq!(histogram(&[(Value::Int(1), Value::Int(1))]), None);
        assert_eq!(histogram(&[(bucket(1), Value::Float(1.0))]), None);
        assert_eq!(histogram(&[(bucket(1), Value::Int(-1))]), None);
        assert_eq!(histogram(&[(Value::Tuple(Vec::new()), Value::Int(1))]), None);
    }
}
