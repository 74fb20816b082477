//! Traces that are written to files: their contents at any time.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use crate::support::random;
use wasm_jit_replay::{Error, Event, Reader, Value, Writer};

/// Events with enough bytes that the file has several blocks, some of which cannot be compressed.
fn events() -> Vec<Event> {
    let mut state = 7;
    let mut events = vec![Event::Start { module: 1, length: 2 }];
    for number in 0..400 {
        events.push(Event::Call { import: 3, arguments: vec![Value::I32(number)] });
        let length = random(&mut state, 60) as usize * random(&mut state, 200) as usize;
        let mask = if number / 50 % 2 == 0 { 0 } else { 255 };
        let bytes = (0..length).map(|_| random(&mut state, 256) as u8 & mask).collect();
        events.push(Event::Write { memory: 0, address: number as u64, bytes });
        events.push(Event::Return { results: vec![Value::I64(number.into())] });
    }
    events
}

fn new_file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

fn read(path: &Path) -> Result<Vec<Event>, Error> {
    Reader::new(File::open(path).unwrap()).collect()
}

/// Everything that a flush has made readable is in the file, even if the process ends here.
#[test]
fn a_file_has_all_events_after_each_flush() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut writer = Writer::to_file(new_file(&path)).unwrap();
    let events = events();
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    for (number, event) in events.iter().enumerate() {
        writer.write(event).unwrap();
        if number % 40 == 0 {
            writer.flush().unwrap();
            let found = read(&path).unwrap();
            assert!(found == events[..=number], "{} events instead of {}", found.len(), number + 1);
        }
    }
    let open = size(&path);
    writer.close().unwrap();
    assert!(read(&path).unwrap() == events);
    assert!(size(&path) < open, "without slots");
    assert!(writer.write(&events[1]).is_err());
    writer.close().unwrap();
}

/// The file of a writer that was dropped is the same as that of one that was closed.
#[test]
fn a_dropped_writer_ends_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let events = events();
    for number in [1, 30, events.len()] {
        let mut writer = Writer::to_file(new_file(&path)).unwrap();
        events[..number].iter().for_each(|event| writer.write(event).unwrap());
        drop(writer);
        assert!(read(&path).unwrap() == events[..number]);
        let length = fs::metadata(&path).unwrap().len();
        assert!(length < 1200 || number > 30, "{length} bytes for {number} events");
    }
}

/// A changed bit, in blocks or in slots, is an error or has no meaning; so is the end of a
/// truncated file.
#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let events = events();
    let mut writer = Writer::to_file(new_file(&path)).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    writer.flush().unwrap();
    let open = fs::read(&path).unwrap();
    writer.close().unwrap();
    let closed = fs::read(&path).unwrap();
    let mut state = 3;
    let mut refused = 0;
    for bytes in [&closed, &open] {
        for round in 0..60 {
            let mut damaged = bytes.clone();
            let at = if round < 30 { round } else { random(&mut state, damaged.len() as u64) as usize };
            damaged[at] ^= 1 << random(&mut state, 8);
            let read: Result<Vec<Event>, Error> = Reader::new(&damaged[..]).collect();
            refused += usize::from(read.is_err());
            assert!(read.is_err() || read.unwrap() == events, "byte {at}");
            let length = random(&mut state, bytes.len() as u64) as usize;
            let cut: Vec<Event> = Reader::new(&bytes[..length]).map_while(Result::ok).collect();
            assert!(events.starts_with(&cut), "{length} bytes");
        }
    }
    assert!(refused > 60, "{refused}");
}

/// A file that lost its end, in a block or a slot or as a stream, is read up to the last event that
/// is complete.
#[test]
fn the_end_of_a_file_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let all = events();
    for number in [30, all.len()] {
        let events = &all[..number];
        let mut writer = Writer::to_file(new_file(&path)).unwrap();
        events.iter().for_each(|event| writer.write(event).unwrap());
        writer.flush().unwrap();
        let mut open = fs::read(&path).unwrap();
        writer.close().unwrap();
        let closed = fs::read(&path).unwrap();
        // The slot of the last events, which is filled up with zeros.
        open.truncate(open.iter().rposition(|byte| *byte != 0).unwrap() + 1);
        let mut stream = Writer::new(new_file(&path)).unwrap();
        events.iter().for_each(|event| stream.write(event).unwrap());
        stream.close().unwrap();
        let mut files = vec![(closed, "block"), (fs::read(&path).unwrap(), "frame")];
        // With several slots, the one with the last events need not be the last one in the file.
        if number < all.len() {
            files.push((open, "slot"));
        }
        for (bytes, place) in files {
            for missing in [1, 2] {
                let mut reader = Reader::new(&bytes[..bytes.len() - missing]);
                let mut found = Vec::new();
                let error = loop {
                    match reader.next() {
                        Some(Ok(event)) => found.push(event),
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    }
                };
                assert!(events.starts_with(&found), "{place}");
                assert!(found.len() + 3 >= number, "{place}: {} of {number} events", found.len());
                if let Some(error) = &error {
                    assert!(error.to_string().contains(place), "{error}");
                }
                // A stream may have nothing but its end mark in the last bytes.
                assert!(error.is_some() || place == "frame", "{place}");
                assert!(reader.next().is_none());
            }
        }
    }
}

/// In this case, the trace is a stream.
#[test]
fn other_files_are_written_as_streams() {
    let mut writer = Writer::to_file(OpenOptions::new().write(true).open("/dev/null").unwrap()).unwrap();
    writer.write(&Event::Snapshot).unwrap();
    writer.close().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    fs::write(&path, "what was there before, which is longer than the trace").unwrap();
    // It cannot be read, and therefore not be mapped.
    let mut writer = Writer::to_file(OpenOptions::new().write(true).open(&path).unwrap()).unwrap();
    writer.write(&Event::Start { module: 1, length: 2 }).unwrap();
    writer.flush().unwrap();
    assert_eq!(read(&path).unwrap(), [Event::Start { module: 1, length: 2 }]);
}
