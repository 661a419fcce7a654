//! Secret of HS256 tokens, in the data directory or in a file that several nodes share.

use std::{
    io::{self, Write},
    path::Path,
};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

use crate::private;

/// Name of the key file in the data directory.
const KEY_FILE: &str = "token.key";

/// Reads the key of a data directory, and creates a random one at first use (mode 0600).
///
/// # Errors
/// The directory can't be created, or the file can't be read or is not 64 hex digits.
pub fn load_or_create_key(data: &Path) -> io::Result<Vec<u8>> {
    match load_key(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private::create_dir_all(data)?;
            create_key(&data.join(KEY_FILE))
        }
        other => other,
    }
}

/// Writes a random key, as 64 hex digits, to a new file (mode 0600).
///
/// # Errors
/// The file exists already, or can't be created.
pub fn create_key(path: &Path) -> io::Result<Vec<u8>> {
    let key: [u8; 32] = rand::random();
    let at = |error: io::Error| {
        io::Error::new(error.kind(), format!("{} can't be created: {error}", path.display()))
    };
    let mut file = private::options().create_new(true).open(path).map_err(at)?;
    writeln!(file, "{}", HEXLOWER.encode(&key)).map_err(at)?;
    Ok(key.to_vec())
}

/// Reads the key of a data directory.
///
/// # Errors
/// The file is missing or unreadable, or is not 64 hex digits.
pub fn load_key(data: &Path) -> io::Result<Vec<u8>> {
    let file = data.join(KEY_FILE);
    read_key(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => error,
        io::ErrorKind::InvalidData => {
            let why = format!("{}: {error}; remove it to get a new key", file.display());
            io::Error::new(error.kind(), why)
        }
        kind => io::Error::new(kind, format!("{}: {error}", file.display())),
    })
}

/// Reads a key file.
///
/// # Errors
/// The file is missing or unreadable, other accounts than its owner and group may read it, or it is not 64 hex digits; the
/// text names the cure, but not the file, which the caller adds.
pub fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let text = private::read(path)?;
    let wrong = "it is not 64 hex digits, as `openssl rand -hex 32` makes them";
    decode_hex(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, wrong))
}

fn decode_hex(text: &[u8]) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.trim_ascii()).ok().filter(|key| key.len() == 32)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;

    #[test]
    fn key_is_64_hex_digits_of_either_case() {
        let digits = "00Ff".repeat(16);
        assert_eq!(decode_hex(format!("{digits}\n").as_bytes()), Some([0, 255].repeat(16)));
        for wrong in ["", &digits[2..], &digits.replace("00", "+0"), &format!("{digits}00")] {
            assert_eq!(decode_hex(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn world_readable_key_is_refused() {
        let file = std::env::temp_dir().join(format!("tidegate-key-{}", std::process::id()));
        let key = create_key(&file).unwrap();
        assert!(create_key(&file).is_err(), "an existing key is never overwritten");
        assert_eq!(read_key(&file).unwrap(), key);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(read_key(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
    }
}
