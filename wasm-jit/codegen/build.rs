//! Computes the fingerprint of the code generator: a hash of its sources and features, by which
//! stored machine code of another code generator is recognized.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    let mut hasher = DefaultHasher::new();
    hash_folder(Path::new("src"), &mut hasher)?;
    std::env::var_os("CARGO_FEATURE_FEW_CACHED_LOCALS").hash(&mut hasher);
    println!("cargo::rustc-env=CODEGEN_FINGERPRINT={:016x}", hasher.finish());
    Ok(())
}

/// Hashes paths and contents, in the order of the paths.
fn hash_folder(folder: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            hash_folder(&path, hasher)?;
        } else {
            path.hash(hasher);
            fs::read(&path)?.hash(hasher);
        }
    }
    Ok(())
}
