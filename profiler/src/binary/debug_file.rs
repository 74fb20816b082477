//! Debugging information of an object: in its file, or in a separate one.
//!
//! If the object has no `.debug_info`, a separate file is searched where debuggers search it:
//!
//! 1. by the build id: `/usr/lib/debug/.build-id/ab/cdef.debug`;
//! 2. by the name in `.gnu_debuglink`: in the object's directory, in `.debug` there, and in the
//!    same directory below `/usr/lib/debug`.
//!
//! The separate file belongs to the object if both have the same build id or, if one of them has
//! none, if its checksum is the one in `.gnu_debuglink`. Sections may be compressed with zlib.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;
use flate2::read::ZlibDecoder;
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{CompressedFileRange, CompressionFormat, Object, ObjectSection, ObjectSegment};

/// Maximum number of bytes that are read of one object, and maximum size of a file whose checksum
/// is computed.
const MAX_BYTES: u64 = 512 << 20;

/// The directory of separate files.
const ROOT: &str = "/usr/lib/debug";

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Elf(#[from] object::Error),
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error("the section {section} is truncated")]
    Truncated { section: String },
    #[error("the section {section} is compressed, and not with zlib")]
    Compressed { section: String },
}

/// A section in memory; empty if it does not exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loaded {
    /// The section's address in the file.
    pub(crate) address: u64,
    pub(crate) data: Arc<[u8]>,
}

/// An object with its debugging information.
#[derive(Debug)]
pub(crate) struct DebugFile {
    object: Elf,
    separate: Option<Elf>,
    /// The number of bytes that may still be read.
    left: u64,
}

impl DebugFile {
    /// Opens the file of an object, and its separate file if there is one.
    ///
    /// # Errors
    /// The object's file cannot be read, or is not an ELF file for this processor.
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        Self::open_below(path, Path::new(ROOT))
    }

    fn open_below(path: &Path, root: &Path) -> Result<Self, ReadError> {
        let object = Elf::open(path)?;
        let separate = match object.has_debug_information() {
            true => None,
            false => separate(path, &object, root),
        };
        Ok(Self { object, separate, left: MAX_BYTES })
    }

    /// The lowest load address in the program headers, rounded down because the loader maps whole
    /// pages.
    pub(crate) fn lowest(&self) -> u64 {
        self.object.lowest
    }

    /// The names of the object's sections.
    pub(crate) fn names(&self) -> Vec<String> {
        self.object.sections.iter().map(|section| section.name.clone()).collect()
    }

    /// Reads a section of the object.
    ///
    /// # Errors
    /// All errors except [`ReadError::Elf`].
    pub(crate) fn section(&mut self, name: &str) -> Result<Loaded, ReadError> {
        self.object.load(name, &mut self.left)
    }

    /// Reads a section with debugging information.
    ///
    /// # Errors
    /// All errors except [`ReadError::Elf`].
    pub(crate) fn debug_section(&mut self, name: &str) -> Result<Loaded, ReadError> {
        self.separate.as_mut().unwrap_or(&mut self.object).load(name, &mut self.left)
    }
}

/// The separate file of an object.
fn separate(path: &Path, object: &Elf, root: &Path) -> Option<Elf> {
    let of_id = object.build_id.as_deref().filter(|id| id.len() > 1).map(|id| {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        root.join(".build-id").join(hex(&id[..1])).join(format!("{}.debug", hex(&id[1..])))
    });
    let of_link = object.debug_link.iter().flat_map(|(name, _)| by_link(path, name, root));
    of_id.into_iter().chain(of_link).find_map(|candidate| {
        let mut found = Elf::open(&candidate).ok().filter(Elf::has_debug_information)?;
        let is_own = match (&object.build_id, &found.build_id) {
            (Some(id), Some(other)) => id == other,
            _ => {
                let checksum = object.debug_link.as_ref().map(|(_, checksum)| *checksum);
                checksum.is_some() && found.checksum().ok() == checksum
            }
        };
        is_own.then_some(found)
    })
}

/// The possible paths of a file that `.gnu_debuglink` names.
fn by_link(path: &Path, name: &[u8], root: &Path) -> Vec<PathBuf> {
    let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
    let Some(folder) = fs::canonicalize(path).ok().and_then(|path| Some(path.parent()?.to_owned())) else {
        return Vec::new();
    };
    if !is_name {
        return Vec::new();
    }
    let below_root = root.join(folder.strip_prefix("/").unwrap_or(&folder));
    [folder.clone(), folder.join(".debug"), below_root]
        .map(|folder| folder.join(OsStr::from_bytes(name)))
        .to_vec()
}

/// An ELF file whose headers have been read.
#[derive(Debug)]
struct Elf {
    file: File,
    lowest: u64,
    sections: Vec<Section>,
    build_id: Option<Vec<u8>>,
    /// The name of the separate file, and its checksum.
    debug_link: Option<(Vec<u8>, u32)>,
}

#[derive(Debug)]
struct Section {
    name: String,
    address: u64,
    range: CompressedFileRange,
}

impl Elf {
    fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path)?;
        let cache = ReadCache::new(file.try_clone()?);
        let elf: ElfFile64<'_, object::LittleEndian, _> = ElfFile64::parse(&cache)?;
        let section = |section: object::read::elf::ElfSection64<'_, '_, _, _>| -> Option<_> {
            let (name, range) = (section.name().ok()?.to_owned(), section.compressed_file_range().ok()?);
            Some(Section { name, address: section.address(), range })
        };
        let sections = elf.sections().filter_map(section).collect();
        let lowest = elf.segments().map(|segment| segment.address()).min().unwrap_or(0) & !0xfff;
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec);
        let debug_link = elf.gnu_debuglink().ok().flatten().map(|(name, checksum)| (name.to_vec(), checksum));
        Ok(Self { lowest, sections, build_id, debug_link, file })
    }

    fn has_debug_information(&self) -> bool {
        self.find(".debug_info").is_some()
    }

    /// A section, including one with the older name for compressed sections: `.zdebug_info`.
    fn find(&self, name: &str) -> Option<&Section> {
        let is_it = |section: &&Section| {
            section.name == name
                || section.name.strip_prefix(".z").is_some_and(|rest| name.strip_prefix('.') == Some(rest))
        };
        self.sections.iter().find(is_it)
    }

    fn load(&mut self, name: &str, left: &mut u64) -> Result<Loaded, ReadError> {
        let Some(Section { address, range, .. }) = self.find(name) else { return Ok(Loaded::default()) };
        let (address, range) = (*address, *range);
        let size = range.uncompressed_size;
        *left = left.checked_sub(size).ok_or(ReadError::TooLarge)?;
        self.file.seek(SeekFrom::Start(range.offset))?;
        let mut data = Vec::new();
        // One more byte would be too much.
        match range.format {
            CompressionFormat::None => (&mut self.file).take(size).read_to_end(&mut data)?,
            CompressionFormat::Zlib => {
                let compressed = (&mut self.file).take(range.compressed_size);
                ZlibDecoder::new(compressed).take(size.saturating_add(1)).read_to_end(&mut data)?
            }
            _ => return Err(ReadError::Compressed { section: name.to_owned() }),
        };
        if data.len() as u64 != size {
            return Err(ReadError::Truncated { section: name.to_owned() });
        }
        Ok(Loaded { address, data: data.into() })
    }

    /// The checksum of the file, as in `.gnu_debuglink`.
    fn checksum(&mut self) -> Result<u32, ReadError> {
        if self.file.metadata()?.len() > MAX_BYTES {
            return Err(ReadError::TooLarge);
        }
        self.file.seek(SeekFrom::Start(0))?;
        let mut crc = Crc::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(crc.sum()),
                length => crc.update(&buffer[..length]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(program: &str, arguments: &[&OsStr]) {
        let status = Command::new(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    }

    /// A library whose debugging information is in `debug`, and the path that the build id
    /// requests.
    fn stripped(folder: &Path, has_build_id: bool) -> (PathBuf, PathBuf, PathBuf) {
        let [source, library, debug] = ["f.c", "libf.so", "f.debug"].map(|name| folder.join(name));
        fs::write(&source, "int f(int x) { return x + 1; }\n").unwrap();
        let id = if has_build_id { "-Wl,--build-id=0xabcdef012345" } else { "-Wl,--build-id=none" };
        let flags = ["-g", "-shared", "-fPIC", id, "-o"].map(OsStr::new);
        run("cc", &[&flags[..], &[library.as_ref(), source.as_ref()]].concat());
        run("objcopy", &["--only-keep-debug".as_ref(), library.as_ref(), debug.as_ref()]);
        run("objcopy", &["--strip-debug".as_ref(), library.as_ref()]);
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run("objcopy", &[link.as_ref(), library.as_ref()]);
        (library, debug, folder.join("root/.build-id/ab/cdef012345.debug"))
    }

    #[track_caller]
    fn check(library: &Path, root: &Path, is_found: bool) {
        let mut file = DebugFile::open_below(library, root).unwrap();
        assert_eq!(!file.debug_section(".debug_info").unwrap().data.is_empty(), is_found);
        assert!(!file.section(".text").unwrap().data.is_empty(), "it is that of the object");
    }

    fn moved(from: &Path, to: &Path) {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(from, to).unwrap();
    }

    #[test]
    fn separate_files_are_found_by_build_id_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        let root = folder.join("root");
        let (library, debug, of_id) = stripped(&folder, true);
        check(&library, &root, true);
        for place in [
            folder.join(".debug/f.debug"),
            root.join(folder.strip_prefix("/").unwrap()).join("f.debug"),
            of_id,
        ] {
            moved(&debug, &place);
            check(&library, &root, true);
            moved(&place, &debug);
        }
        fs::remove_file(&debug).unwrap();
        check(&library, &root, false);
    }

    #[test]
    fn the_file_of_another_object_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let (library, debug, of_id) = stripped(folder.path(), true);
        let id = ["-g", "-shared", "-Wl,--build-id=0xabcdef012346", "-o"].map(OsStr::new);
        run("cc", &[&id[..], &[debug.as_ref(), folder.path().join("f.c").as_ref()]].concat());
        check(&library, &root, false);
        moved(&debug, &of_id);
        check(&library, &root, false);
    }

    #[test]
    fn without_build_ids_the_checksum_decides() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let (library, debug, _) = stripped(folder.path(), false);
        check(&library, &root, true);
        let mut bytes = fs::read(&debug).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&debug, bytes).unwrap();
        check(&library, &root, false);
    }

    #[test]
    fn compressed_sections_are_what_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let (_, debug, _) = stripped(folder.path(), true);
        let section = |path: &Path| {
            let mut file = DebugFile::open(path)?;
            file.debug_section(".debug_info").map(|section| section.data)
        };
        let expected = section(&debug).unwrap();
        for format in ["zlib", "zlib-gnu"] {
            let compressed = folder.path().join(format);
            let option = format!("--compress-debug-sections={format}");
            run("objcopy", &[option.as_ref(), debug.as_ref(), compressed.as_ref()]);
            assert!(fs::metadata(&compressed).unwrap().len() < fs::metadata(&debug).unwrap().len());
            assert_eq!(section(&compressed).unwrap(), expected, "{format}");
            // Damage is detected or reported as an error: it must not cause a panic.
            let whole = fs::read(&compressed).unwrap();
            let damaged = folder.path().join("damaged");
            for at in (0..whole.len()).step_by(11) {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x55;
                fs::write(&damaged, &bytes).unwrap();
                let _ = section(&damaged);
            }
        }
    }
}
