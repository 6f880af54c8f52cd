//! Limits for everything that comes from outside: files, downloads, and numbers that a person
//! types.
//!
//! A file can claim any size, and a number can be any number. Each limit here is far above what the
//! program needs, and is checked before memory is allocated for what it limits.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest number of threads. More would only wait for each other, and the system refuses to start
/// tens of thousands of them.
pub const THREADS: usize = 1024;

/// Largest number of images in a generated split, which then takes 614 MB.
pub const IMAGES: usize = 200_000;

/// Largest number of epochs. The records of so many epochs have about 150 MB.
pub const EPOCHS: u32 = 100_000;

/// Largest number of images per step.
pub const BATCH: usize = 8_192;

/// Largest factor of the channels.
pub const WIDTH: f64 = 16.0;

/// Largest number of weights of a network's convolutions. VGG16 of width 4 has 235 million, which
/// take 3.8 GB with their gradients and moments.
pub const WEIGHTS: usize = 240_000_000;

/// Largest number of classes: labels are bytes.
pub const CLASSES: usize = 256;

/// Largest number of characters in the name of a class.
pub const CLASS_NAME: usize = 100;

/// Largest number of points along each coordinate of a landscape.
pub const POINTS: usize = 1_001;

/// Largest config.json in bytes. One of ours has about 2,000.
pub const CONFIG: u64 = 1 << 20;

/// Largest metrics.jsonl in bytes: [`EPOCHS`] lines of about 1,500 bytes.
pub const RECORDS: u64 = 256 << 20;

/// Largest evaluation.json in bytes. One of ours has about 50,000.
pub const EVALUATION: u64 = 16 << 20;

/// Largest figure of a landscape in bytes. One of ours has less than a megabyte.
pub const FIGURE: u64 = 32 << 20;

/// Largest header of a checkpoint in bytes. That of VGG19 has about 25,000, and parsing a header
/// takes some thirty times its size.
pub const HEADER: u64 = 1 << 20;

/// Largest picture file in bytes.
pub const PICTURE: u64 = 192 << 20;

/// Largest number of pixels of a picture, and of its bytes when it is decoded. Pixels of one bit
/// become four bytes later on. A picture at these limits takes about 500 MB.
pub const PIXELS: u64 = 1 << 26;
/// See [`PIXELS`].
pub const DECODED: u64 = 192 << 20;

/// Largest file that is downloaded, in bytes. The largest one that is expected has 139 MB.
pub const DOWNLOAD: u64 = 512 << 20;

/// Opens a file for reading. Anything but a regular file is refused: opening a FIFO could wait for
/// ever, and a device has no end.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::other("it is a folder, not a file"));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file, but a FIFO, a socket or a device"));
    }
    Ok(file)
}

/// Reads a regular file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let size = file.metadata()?.len();
    let too_large = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than the {limit} bytes that such a file may have"),
        )
    };
    if size > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // The file may grow while it is read.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Reads a regular text file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_up_to_the_limit_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let error = read(&path, 4).unwrap_err().to_string();
        assert!(error.contains("more than the 4 bytes"), "{error}");
        // A terabyte that is not there, and must not be allocated.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path, 1 << 20).is_err());
        fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path, 5).unwrap_err().to_string().contains("UTF-8"));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        let temp = tempfile::tempdir().unwrap();
        let fifo = temp.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (path, word) in
            [(fifo.as_path(), "FIFO"), (temp.path(), "folder"), (Path::new("/dev/zero"), "device")]
        {
            let error = read(path, 100).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
