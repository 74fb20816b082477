//! Caches of compiled modules: hits, files that must not be used, the bound of the size, and
//! processes that share a folder.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use wasm_jit::{Cache, CacheStatistics, Config, Engine, Error, Instance, Module, Store};

const BOUND: u64 = 1 << 20;

/// A folder with a cache.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn cache(&self, bound: u64) -> Cache {
        Cache::new(self.folder(), bound).unwrap()
    }

    /// The stored modules.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn only_file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files.into_iter().next().unwrap()
    }
}

fn engine(cache: &Cache) -> Engine {
    Engine::new(Config::new().cache(cache.clone())).unwrap()
}

/// A module whose function returns this number.
fn answer(number: i32) -> String {
    format!(r#"(module (func (export "answer") (result i32) i32.const {number}))"#)
}

/// Compiles or loads the module, and checks what it returns.
#[track_caller]
fn check(cache: &Cache, number: i32) {
    let engine = engine(cache);
    let module = Module::new(&engine, answer(number)).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let function = instance.get_typed_func::<(), i32>(&store, "answer").unwrap();
    assert_eq!(function.call(&mut store, ()).unwrap(), number);
}

/// Hits, misses, rejected files, failures.
fn counts(cache: &Cache) -> [u64; 4] {
    let CacheStatistics { hits, misses, rejected, failures, .. } = cache.statistics();
    [hits, misses, rejected, failures]
}

#[test]
fn a_module_is_compiled_once() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    check(&cache, 1);
    assert_eq!(counts(&cache), [0, 1, 0, 0]);
    check(&cache, 1);
    assert_eq!(counts(&cache), [1, 1, 0, 0]);
    check(&cache, 2);
    assert_eq!(counts(&cache), [1, 2, 0, 0]);
    assert_eq!(counts(&place.cache(BOUND)), [0; 4], "of this one");
}

#[test]
fn modules_with_other_settings_are_stored_separately() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    for _ in 0..2 {
        for hardens in [false, true] {
            let engine = Engine::new(Config::new().cache(cache.clone()).harden_speculation(hardens)).unwrap();
            Module::new(&engine, answer(1)).unwrap();
        }
    }
    assert_eq!(counts(&cache), [2, 2, 0, 0]);
    assert_eq!(place.files().len(), 2);
}

#[test]
fn invalid_modules_are_not_stored() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    Module::new(&engine(&cache), "(module (func (result i32)))").unwrap_err();
    assert_eq!(place.files(), [""; 0].map(PathBuf::from));
}

/// Checks that the only file of the cache is not used after it was changed, but replaced.
#[track_caller]
fn check_rejected(change: impl FnOnce(&Place, &Path)) {
    let place = Place::new();
    let cache = place.cache(BOUND);
    check(&cache, 1);
    let file = place.only_file();
    change(&place, &file);
    check(&cache, 1);
    assert_eq!(counts(&cache), [0, 2, 1, 0], "not used");
    assert_eq!(place.only_file(), file);
    check(&cache, 1);
    assert_eq!(counts(&cache), [1, 2, 1, 0], "replaced");
}

#[test]
fn damaged_files_are_replaced() {
    check_rejected(|_, file| {
        let mut bytes = fs::read(file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(file, bytes).unwrap();
    });
    check_rejected(|_, file| File::options().write(true).open(file).unwrap().set_len(5000).unwrap());
    check_rejected(|_, file| File::options().write(true).open(file).unwrap().set_len(0).unwrap());
}

#[test]
fn files_that_others_can_write_are_replaced() {
    for mode in [0o620, 0o602, 0o666] {
        check_rejected(|_, file| fs::set_permissions(file, Permissions::from_mode(mode)).unwrap());
    }
}

#[test]
fn files_of_other_modules_are_replaced() {
    check_rejected(|_, file| {
        let other = Place::new();
        check(&other.cache(BOUND), 2);
        fs::copy(other.only_file(), file).unwrap();
    });
}

#[test]
fn links_and_pipes_are_replaced() {
    check_rejected(|place, file| {
        let target = place.dir.path().join("elsewhere");
        fs::rename(file, &target).unwrap();
        symlink(&target, file).unwrap();
    });
    check_rejected(|_, file| {
        fs::remove_file(file).unwrap();
        assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
    });
}

#[test]
fn folders_that_others_can_write_are_refused() {
    let place = Place::new();
    fs::create_dir(place.folder()).unwrap();
    fs::set_permissions(place.folder(), Permissions::from_mode(0o777)).unwrap();
    let error = Cache::new(place.folder(), BOUND).unwrap_err();
    assert!(matches!(error, Error::Cache { .. }), "{error}");
    assert!(error.to_string().ends_with("others can write to it: take that away (chmod go-w)"), "{error}");
}

#[test]
fn a_file_is_no_folder() {
    let place = Place::new();
    fs::write(place.folder(), "").unwrap();
    let error = Cache::new(place.folder(), BOUND).unwrap_err();
    assert!(matches!(error, Error::Cache { .. }), "{error}");
}

#[test]
fn modules_are_compiled_although_they_cannot_be_stored() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    fs::remove_dir(place.folder()).unwrap();
    check(&cache, 1);
    assert_eq!(counts(&cache), [0, 1, 0, 1]);
}

#[test]
fn the_least_recently_used_files_are_removed() {
    let place = Place::new();
    let size = {
        let other = Place::new();
        check(&other.cache(BOUND), 1000);
        fs::metadata(other.only_file()).unwrap().len()
    };
    let cache = place.cache(3 * size + size / 2);
    let mut files = Vec::new();
    for number in 1000..1003 {
        check(&cache, number);
        let new = place.files().into_iter().find(|file| !files.contains(file)).unwrap();
        // An order that does not depend on the resolution of the clock.
        let time = SystemTime::now() - Duration::from_secs(60 * (1010 - number as u64));
        File::open(&new).unwrap().set_modified(time).unwrap();
        files.push(new);
    }
    check(&cache, 1000);
    assert_eq!(counts(&cache), [1, 3, 0, 0], "the first one is used again");
    check(&cache, 1003);
    let left = place.files();
    assert_eq!(left.len(), 3);
    assert!(left.contains(&files[0]) && !left.contains(&files[1]) && left.contains(&files[2]));
    let total: u64 = left.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(total <= 3 * size + size / 2);
}

#[test]
fn a_module_larger_than_the_bound_is_not_stored() {
    let place = Place::new();
    let cache = place.cache(100);
    check(&cache, 1);
    assert!(place.files().is_empty());
    assert_eq!(counts(&cache), [0, 1, 0, 0]);
}

/// `compile -o` writes files with the same ending.
#[test]
fn files_of_the_user_are_not_removed() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    let own = place.folder().join("app.cwasm");
    fs::write(&own, "compiled").unwrap();
    check(&cache, 1);
    // There is room for one module.
    let bound = place.files().iter().map(|file| file.metadata().unwrap().len()).max().unwrap();
    check(&place.cache(bound), 2);
    assert!(own.exists());
    assert_eq!(place.files().len(), 2, "of the two modules one is left");
}

#[test]
fn abandoned_files_are_removed() {
    let place = Place::new();
    let cache = place.cache(BOUND);
    let [old, new] = ["old", "new"].map(|name| place.folder().join(format!(".unfinished-{name}")));
    File::create(&old).unwrap().set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
    let written = File::create(&new).unwrap();
    check(&cache, 1);
    assert!(!old.exists() && new.exists());
    written.set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
    written.lock().unwrap();
    check(&cache, 1);
    check(&cache, 3);
    assert!(new.exists(), "a process writes it");
    // The process was killed.
    drop(written);
    check(&cache, 2);
    assert!(!new.exists());
}

const CHILD: &str = "CACHE_OF_CHILD";

/// Run by the next test, as another process.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    // Files are removed all the time: there is room for some ten of them.
    let cache = Cache::new(PathBuf::from(folder), 100_000).unwrap();
    for round in 0..5 {
        for number in 0..20 {
            check(&cache, (number * 7 + round) % 20);
        }
    }
    let [_, _, rejected, _] = counts(&cache);
    assert_eq!(rejected, 0, "no file is seen incomplete");
}

#[test]
fn processes_that_fill_a_cache_at_once_do_not_disturb_each_other() {
    let place = Place::new();
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child"]).env(CHILD, place.folder());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = [start(), start(), start()];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let total: u64 = place.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(total <= 100_000, "{total}");
}
