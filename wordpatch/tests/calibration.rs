//! A calibration file is found by the environment and put in force. One test, because the file is
//! read once per process.

use wordpatch::calibration::{Calibration, ENVIRONMENT, Evidence, Host, Model, Status, VERSION, status};
use wordpatch::{FetchModel, FetchWindow, Source, TMax, WaitPolicy};

#[test]
fn the_file_that_the_environment_names_is_put_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let calibration = Calibration {
        version: VERSION,
        made_by: "a test".into(),
        made_unix_s: 0,
        host: Host::here(),
        model: Model { window_bytes: 16, t_max_ticks: Some(1_000_000), wait: WaitPolicy::TMax },
        evidence: Evidence {
            confidence: 0.99,
            trials_inside_window: 600,
            torn_inside_at_most: 0.01,
            torn_at_border_at_least: 0.5,
            clean_wait_ticks: 500_000,
            safety_factor: 2.0,
            trials_at_clean_waits: 600,
            torn_at_clean_waits_at_most: 0.01,
        },
    };
    calibration.write(&path).unwrap();
    // SAFETY: the only test of this process has started no thread.
    unsafe { std::env::set_var(ENVIRONMENT, &path) };

    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_tsc = std::fs::read_to_string(clock).is_ok_and(|clock| clock == "tsc\n");
    let expected = FetchModel {
        window: FetchWindow::Bytes16,
        t_max: is_tsc.then_some(TMax(1_000_000)),
        wait: if is_tsc { WaitPolicy::TMax } else { WaitPolicy::Membarrier },
        source: Source::Calibrated,
    };
    assert_eq!(FetchModel::in_force(), expected);
    assert!(matches!(status(), Status::Loaded { path: found, .. } if *found == path));
    assert_eq!(status().warning().is_none(), is_tsc);

    // SAFETY: the vendors' guarantees hold everywhere, and no T_max is claimed.
    unsafe { FetchModel::force(FetchWindow::Bytes8, None, WaitPolicy::TMax) };
    let forced = FetchModel::in_force();
    assert_eq!((forced.source, forced.wait), (Source::Forced, WaitPolicy::Membarrier));
}
