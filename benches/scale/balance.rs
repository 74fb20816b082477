//! Distribution of the executions over the two states.

use benches::distribution::geometric_mean;
use benches::pace::Pace;
use benches::report::{Cell, Table};

use crate::turn::{Measured, Turn};

/// The share of a turn in which the site was on.
type Part = fn(&Turn) -> f64;

const PARTS: [(&str, Part); 2] = [("executions", Turn::active_part), ("time", Turn::active_time)];

/// Two rows for each site and number of executors: the shares of the executions, and of their time.
pub(crate) fn table(measured: &[Measured]) -> Table {
    let mut table = Table::new(
        "Balance between the two states, as observed by the executors (paper, section 8.4: imbalance 2.5 to 2.7, Java's 38.7)",
        "Percent of executions with the site on, by the requested rate of toggles; medians over the turns. The toggling thread leaves \
         the site in each state for the same time; an execution that calls takes longer than one that does not, so there \
             are fewer of them: therefore the second row has shares of time. Imbalance: the more frequent state to the less frequent one, \
         geometric mean over rates and turns; a state that was never observed counts as observed once.",
        &["site", "executors", "percent of", "1 kHz", "10 kHz", "100 kHz", "1 MHz", "unlimited", "imbalance"],
    );
    for first in measured.iter().filter(|measured| measured.pace == Pace::ALL[0]) {
        let same = |other: &&Measured| other.site == first.site && other.executors == first.executors;
        let paces = |pace| measured.iter().filter(same).find(move |other: &&Measured| other.pace == pace);
        for (name, part) in PARTS {
            let percent = |pace| match paces(pace) {
                Some(measured) => Cell::from(100.0 * measured.distribution(part).median),
                None => Cell::from("-"),
            };
            let imbalances = measured
                .iter()
                .filter(same)
                .flat_map(|measured| &measured.turns)
                .map(|turn| imbalance(part(turn), turn));
            let mut row = vec![first.site.as_str().into(), first.executors.into(), name.into()];
            row.extend(Pace::ALL.map(percent));
            row.push(geometric_mean(imbalances).into());
            table.push(row);
        }
    }
    table
}

/// Ratio of the larger share to the smaller one, which is taken as at least one execution.
fn imbalance(active: f64, turn: &Turn) -> f64 {
    let one = 1.0 / turn.toggled.executions.iter().sum::<u64>() as f64;
    let least = active.min(1.0 - active).max(one);
    (1.0 - least) / least
}
