//! Rust's standard library on WASI, and packages that compute: an image is drawn, a directory of
//! texts is indexed, files are created, renamed and removed.
//!
//! usage: rust.wasm draw PICTURE.svg PICTURE.png | index FOLDER REGEX | files FOLDER

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::{env, fs, io, process};

use regex::Regex;

type Outcome = Result<(), Box<dyn Error>>;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["draw", picture, to] => draw(picture, to),
        ["index", folder, pattern] => index(folder, pattern),
        ["files", folder] => files(Path::new(folder)),
        _ => Err("usage: rust.wasm draw PICTURE.svg PICTURE.png | index FOLDER REGEX | files FOLDER".into()),
    };
    if let Err(error) = outcome {
        eprintln!("rust.wasm: {error}");
        process::exit(2);
    }
}

fn draw(picture: &str, to: &str) -> Outcome {
    let options = usvg::Options::default();
    let tree = usvg::Tree::from_data(&fs::read(picture)?, &options.to_ref())?;
    let size = tree.svg_node().size.to_screen_size();
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or("a picture without size")?;
    resvg::render(&tree, usvg::FitTo::Original, tiny_skia::Transform::default(), pixels.as_mut())
        .ok_or("not drawn")?;
    let mut sums = [0_u64; 4];
    for pixel in pixels.pixels() {
        let parts = [pixel.red(), pixel.green(), pixel.blue(), pixel.alpha()];
        sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += u64::from(part));
    }
    println!("{} by {}, sums of red, green, blue, alpha: {sums:?}", size.width(), size.height());
    pixels.save_png(to)?;
    Ok(())
}

/// The number of occurrences of each match in the files of a directory and its subdirectories, as
/// JSON.
fn index(folder: &str, pattern: &str) -> Outcome {
    let pattern = Regex::new(pattern)?;
    // Hashed with random numbers from the system, so sorted before it is printed.
    let mut found: HashMap<String, HashMap<String, u64>> = HashMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.to_str().ok_or("a name that is not UTF-8")?.to_owned();
            if path.is_dir() {
                folders.push(name);
                continue;
            }
            let counts = found.entry(name).or_default();
            for line in BufReader::new(fs::File::open(path)?).lines() {
                for hit in pattern.find_iter(&line?) {
                    *counts.entry(hit.as_str().to_owned()).or_default() += 1;
                }
            }
        }
    }
    let ordered: BTreeMap<_, _> = found
        .into_iter()
        .map(|(name, counts)| (name, counts.into_iter().collect::<BTreeMap<_, _>>()))
        .collect();
    println!("{}", serde_json::to_string_pretty(&ordered)?);
    Ok(())
}

fn files(folder: &Path) -> Outcome {
    let inside = folder.join("made/by/rust");
    fs::create_dir_all(&inside)?;
    let first = inside.join("first");
    let mut file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&first)?;
    for number in 0..10_000_u64 {
        writeln!(file, "{number} {}", number * number)?;
    }
    file.seek(SeekFrom::End(-5))?;
    let mut end = String::new();
    file.read_to_string(&mut end)?;
    println!("ends in {end:?}, {} bytes", file.metadata()?.len());
    file.set_len(12)?;
    drop(file);
    fs::OpenOptions::new().append(true).open(&first)?.write_all(b"appended\n")?;
    let second = inside.join("second");
    fs::rename(&first, &second)?;
    println!("{:?}", fs::read_to_string(&second)?);
    fs::copy(&second, &first)?;
    let mut names: Vec<_> =
        fs::read_dir(&inside)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    println!("{names:?}");
    // By WASI's error numbers: their names in std change from version to version.
    let refused = |what: &str, result: io::Result<()>| {
        println!("{what}: {:?}", result.map_err(|error| error.raw_os_error()));
    };
    refused("a folder that is not empty", fs::remove_dir(&inside));
    refused(
        "a file that is there",
        fs::OpenOptions::new().write(true).create_new(true).open(&first).map(drop),
    );
    refused("a file that is not there", fs::read(inside.join("third")).map(drop));
    refused("a folder as a file", fs::read(&inside).map(drop));
    refused("above what was opened", fs::read(folder.join("../../etc/passwd")).map(drop));
    fs::remove_dir_all(folder.join("made"))?;
    println!("removed: {}", !inside.exists());
    println!("{:?}", env::var("RUST_WORKLOAD"));
    Ok(())
}
