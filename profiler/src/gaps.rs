//! Calls that were counted in gaps between bursts, and what they tell of the gaps in which none were: ratios of sums, and
//! their variances.

/// What is known of one gap.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    /// Counted to its end.
    Counted { calls: f64, time: f64 },
    /// Counted in its beginning.
    Begun {
        calls: f64,
        /// How long the program ran in the beginning, and in the rest.
        ran: f64,
        rest_ran: f64,
        /// From the beginning to the end, pauses and all.
        time: f64,
    },
}

/// How many numbers describe a gap: calls if it was counted to its end, calls if not, and the three times.
const NUMBERS: usize = 5;

/// Sums over gaps; times are in one unit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gaps {
    /// Gaps, and those of them that were not counted to their end.
    gaps: f64,
    begun: f64,
    /// Of the numbers, and of the products of any two.
    sums: [f64; NUMBERS],
    products: [[f64; NUMBERS]; NUMBERS],
}

/// The least that a call can take, in ticks: about a nanosecond.
pub(crate) const SHORTEST_CALL: f64 = 3.0;

/// Scatter of so many sums around a rate that was found from them.
fn unbiased(squares: f64, number: f64, alone: f64) -> f64 {
    if number > 1.0 { squares.max(0.0) * number / (number - 1.0) } else { alone * alone }
}

impl Gaps {
    pub(crate) fn add(&mut self, gap: &Gap) {
        let numbers = match *gap {
            Gap::Counted { calls, time } => [calls, 0.0, 0.0, 0.0, time],
            Gap::Begun { calls, ran, rest_ran, time } => [0.0, calls, ran, rest_ran, time],
        };
        self.gaps += 1.0;
        self.begun += f64::from(u8::from(matches!(gap, Gap::Begun { .. })));
        for (row, left) in numbers.iter().enumerate() {
            self.sums[row] += left;
            for (column, right) in numbers.iter().enumerate() {
                self.products[row][column] += left * right;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gaps == 0.0
    }

    /// Sum over the gaps of the square of the numbers' sum, weighted.
    fn squares(&self, weights: [f64; NUMBERS]) -> f64 {
        let row = |(products, left): (&[f64; NUMBERS], f64)| {
            products.iter().zip(weights).map(|(product, right)| product * left * right).sum::<f64>()
        };
        self.products.iter().zip(weights).map(row).sum()
    }

    /// Calls in a unit of time in which the program runs, over the gaps that were counted in their beginnings.
    fn running_rate(&self) -> f64 {
        let [_, calls, ran, ..] = self.sums;
        if calls == 0.0 { 0.0 } else { calls / ran.max(calls * SHORTEST_CALL) }
    }

    /// Calls that the rests of gaps must have held.
    pub(crate) fn rest_calls(&self) -> f64 {
        self.running_rate() * self.sums[3]
    }

    /// Calls in these gaps.
    pub(crate) fn calls(&self) -> f64 {
        self.sums[0] + self.sums[1] + self.rest_calls()
    }

    /// Calls in a unit of time in a gap.
    pub(crate) fn rate(&self) -> f64 {
        if self.sums[4] > 0.0 { self.calls() / self.sums[4] } else { 0.0 }
    }

    /// Calls in a unit of time in which the program is at work, as far as that is known.
    pub(crate) fn busy_rate(&self) -> f64 {
        if self.begun > 0.0 { self.running_rate() } else { self.rate() }
    }

    /// Variance of the number of calls in the rests of gaps, and in other gaps that are this long together.
    pub(crate) fn variance(&self, others: f64) -> f64 {
        let [counted, begun, _, rest_ran, time] = self.sums;
        let others = if time > 0.0 { others / time } else { 0.0 };
        let (rate, running) = (self.rate(), self.running_rate());
        // Of the rate in beginnings. If calls come at random, their number is its own variance.
        let scatter = unbiased(self.squares([0.0, 1.0, -running, 0.0, 0.0]), self.begun, begun).max(begun);
        let of_rests =
            if begun > 0.0 { scatter * (running / begun * rest_ran * (1.0 + others)).powi(2) } else { 0.0 };
        if self.gaps == 1.0 && begun > 0.0 {
            return of_rests;
        }
        // With no call counted, there may have been one.
        let among_gaps =
            unbiased(self.squares([1.0, 1.0, 0.0, running, -rate]), self.gaps, counted).max(counted).max(1.0);
        of_rests + among_gaps * others.powi(2)
    }
}
