//! A measured quantity: never a single number.

/// The statistics of a set of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// The number of measurements.
    pub count: usize,
    /// The mean without the lowest and the highest hundredth: the paper reports means, and a
    /// measurement during which the thread was preempted is not a property of the code.
    pub mean: f64,
    /// One in ten is smaller.
    pub p10: f64,
    /// Half are smaller.
    pub median: f64,
    /// One in ten is larger.
    pub p90: f64,
}

impl Distribution {
    /// The distribution of `values`.
    ///
    /// # Panics
    /// When there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "nothing was measured");
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        let quiet = &values[values.len() / 100..values.len() - values.len() / 100];
        let mean = quiet.iter().sum::<f64>() / quiet.len() as f64;
        Self { count: values.len(), mean, p10: at(0.1), median: at(0.5), p90: at(0.9) }
    }
}

/// The geometric mean of positive numbers.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (sum / count).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measurements() {
        let distribution = Distribution::of((0..=100).rev().map(f64::from).collect());
        let expected = Distribution { count: 101, mean: 50.0, p10: 10.0, median: 50.0, p90: 90.0 };
        assert_eq!(distribution, expected);
        assert_eq!(Distribution::of(vec![7.0]).p90, 7.0);
    }
}
