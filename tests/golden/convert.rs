//! Bytes as text and back, and values with what differs from run to run taken out.

use data_encoding::HEXLOWER;
use serde_json::Value;

/// Writes bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Reads what [`hex`] wrote.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).expect("hex digits")
}

/// Appends a field of a later schema to an encoded protobuf message: number 1000, a string.
pub(crate) fn with_unknown_field(message: &[u8]) -> Vec<u8> {
    // The key is 1000 << 3 | 2 as a varint.
    [message, &[0xc2, 0x3e, 5], b"later"].concat()
}

/// Returns how `present` lacks something of `golden`, as a path: objects may have more fields, and nothing else may differ.
pub(crate) fn lacks(golden: &Value, present: &Value) -> Option<String> {
    match (golden, present) {
        (Value::Object(golden), Value::Object(present)) => golden.iter().find_map(|(name, value)| {
            let found = present.get(name).unwrap_or(&Value::Null);
            lacks(value, found).map(|path| format!(".{name}{path}"))
        }),
        (Value::Array(golden), Value::Array(present)) if golden.len() == present.len() => {
            let mut pairs = golden.iter().zip(present).enumerate();
            pairs.find_map(|(at, (golden, present))| {
                lacks(golden, present).map(|path| format!("[{at}]{path}"))
            })
        }
        _ => (golden != present).then(|| format!(": {present} in place of {golden}")),
    }
}

/// Replaces hex numbers of five digits and more, which are boots, epochs and times, and so differ from run to run.
pub(crate) fn blur_text(text: &str) -> String {
    let mut blurred = String::new();
    let mut word = String::new();
    for letter in text.chars().chain([' ']) {
        if letter.is_ascii_alphanumeric() {
            word.push(letter);
            continue;
        }
        let is_number = word.len() >= 5 && word.chars().all(|it| it.is_ascii_hexdigit());
        blurred.push_str(if is_number { "#" } else { &word });
        word.clear();
        blurred.push(letter);
    }
    blurred.pop();
    blurred
}
