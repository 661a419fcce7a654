//! Configuration file: a check that it can be read, before the library parses it, and errors without its content.

use std::{fs, os::unix::fs::FileTypeExt as _, path::Path};

use super::ConfigError;
use crate::private;

/// Checks that the file is readable text. The library reads it again, which would wait for a further writer of a pipe.
///
/// # Errors
/// The file can't be read, is a pipe, or is not text; the text names the cure.
pub(super) fn check(file: &Path) -> Result<(), ConfigError> {
    let is_pipe = fs::metadata(file).is_ok_and(|it| it.file_type().is_fifo());
    let text = match is_pipe {
        true => Err("it is a pipe, which can be read only once; name a file".to_owned()),
        false => private::read_public(file).map_err(|error| error.to_string()),
    };
    let is_text = text.and_then(|bytes| match String::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err("it is not UTF-8; name a TOML file".to_owned()),
    });
    is_text.map_err(|why| {
        let file = file.display();
        ConfigError(vec![format!(
            "the configuration file {file} (--config, TIDEGATE_CONFIG) can't be used: {why}"
        )])
    })
}

/// Returns the text of an error without quoted lines and values of the file, which may be passwords in the wrong place.
pub fn without_values(error: &str) -> String {
    // Quoted lines are those with a bar: ` 3 | url = "redis://:secret@r1"`.
    let is_quote = |line: &str| {
        let begin = line.split_once('|').map(|(begin, _)| begin.trim());
        begin.is_some_and(|begin| begin.bytes().all(|it| it.is_ascii_digit()))
    };
    let lines: Vec<&str> =
        error.lines().map(str::trim_end).filter(|line| !line.is_empty() && !is_quote(line)).collect();
    let text = lines.join("; ");
    let (mut shown, mut rest) = (String::new(), text.as_str());
    while let Some((before, after)) = rest.split_once("string \"") {
        shown.push_str(before);
        shown.push_str("a string");
        // What is expected stands behind the last quotation mark of the value.
        rest = after.rfind("\", expected").map_or("", |end| &after[end + 1..]);
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::{super::Config, *};

    #[test]
    fn errors_quote_no_value_of_the_file() {
        let folder = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("c.toml");
        let problem = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Config::load(Some(&file), &[]).unwrap_err().to_string()
        };
        let list = problem("[redis]\nurls = \"redis://:hidden@r1\"\n");
        assert!(
            list.contains("redis.urls") && list.contains("expected") && !list.contains("hidden"),
            "{list}"
        );
        let number = problem("[limits]\nframe_bytes_max = \"hid\\\"den\"\n");
        assert!(number.contains("frame_bytes_max") && !number.contains("den"), "{number}");
        let syntax = problem("[redis]\nurls = redis://:hidden@r1\n");
        assert!(syntax.contains("line 2") && !syntax.contains("hidden"), "{syntax}");
        std::fs::remove_dir_all(&folder).ok();
    }

    #[test]
    fn pipe_is_refused_at_once() {
        let pipe = std::env::temp_dir().join(format!("tidegate-config-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let why = Config::load(Some(&pipe), &[]).unwrap_err().to_string();
        assert!(why.contains("it is a pipe"), "{why}");
        fs::remove_file(pipe).unwrap();
    }

    #[test]
    fn texts_without_values_stay() {
        let text = "missing field `user`";
        assert_eq!(without_values(text), text);
    }
}
