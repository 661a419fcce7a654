//! Form of an admin key: `tgk_<id, 8>_<secret, 43>_<checksum, 6>`. Prefix and checksum let secret scanners find a leaked
//! key, and tell a mistyped one from a wrong one.

use std::{fmt, str::FromStr};

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{SHA256, digest},
};

/// Prefix of every key.
pub const KEY_PREFIX: &str = "tgk_";

/// Characters of an id.
const ID_CHARS: usize = 8;
/// Characters of a secret: 256 bits of [`DIGITS`].
const SECRET_CHARS: usize = 43;
/// Characters of a checksum.
const CHECKSUM_CHARS: usize = 6;
/// Characters of a key.
const KEY_CHARS: usize = KEY_PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS + 1 + CHECKSUM_CHARS;

/// Characters of secrets and checksums; ids have those up to `z`.
const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const ID_DIGITS: usize = 36;

/// Key as its holder has it. Only [`Self::text`] shows the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    text: String,
}

impl SecretKey {
    /// Creates a random key.
    pub fn random() -> Self {
        let draw = |count: usize, digits: usize| -> String {
            (0..count).map(|_| char::from(DIGITS[rand::random_range(0..digits)])).collect()
        };
        let body = format!("{KEY_PREFIX}{}_{}", draw(ID_CHARS, ID_DIGITS), draw(SECRET_CHARS, DIGITS.len()));
        let checksum = checksum(&body);
        Self { text: format!("{body}_{checksum}") }
    }

    /// Returns the key with its secret, to hand it to its holder.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the id, which is no secret.
    pub fn id(&self) -> &str {
        &self.text[KEY_PREFIX.len()..KEY_PREFIX.len() + ID_CHARS]
    }

    fn secret(&self) -> &str {
        let begin = KEY_PREFIX.len() + ID_CHARS + 1;
        &self.text[begin..begin + SECRET_CHARS]
    }

    /// Returns the SHA-256 of the secret, which is what a node keeps. A random secret of 256 bits needs no slow hash.
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, self.secret().as_bytes()).as_ref());
        hash
    }

    /// Returns whether the secret has that hash, in a time that does not depend on where they differ.
    pub fn has_hash(&self, hash: &[u8; 32]) -> bool {
        verify_slices_are_equal(&self.hash(), hash).is_ok()
    }
}

/// Returns whether the text is an id of a key.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == ID_CHARS && text.bytes().all(|byte| DIGITS[..ID_DIGITS].contains(&byte))
}

/// Returns the checksum of everything before it: the first 8 bytes of its SHA-256, as a number in base 62.
fn checksum(body: &str) -> String {
    let hash = digest(&SHA256, body.as_bytes());
    let mut number = hash.as_ref().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let mut digits = [b'0'; CHECKSUM_CHARS];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    digits.iter().copied().map(char::from).collect()
}

impl FromStr for SecretKey {
    /// The text is no key. It is not repeated, because it may be most of one.
    type Err = MalformedKey;

    fn from_str(text: &str) -> Result<Self, MalformedKey> {
        let is_key = text.is_ascii() && text.len() == KEY_CHARS && text.starts_with(KEY_PREFIX);
        if !is_key {
            return Err(MalformedKey);
        }
        let (body, checksum_given) = text.split_at(KEY_CHARS - CHECKSUM_CHARS);
        let body = body.strip_suffix('_').ok_or(MalformedKey)?;
        let (head, secret) = body.split_at(KEY_PREFIX.len() + ID_CHARS + 1);
        let is_well_formed =
            head.strip_prefix(KEY_PREFIX).and_then(|id| id.strip_suffix('_')).is_some_and(is_id)
                && secret.bytes().all(|byte| DIGITS.contains(&byte))
                && checksum(body) == checksum_given;
        is_well_formed.then(|| Self { text: text.to_owned() }).ok_or(MalformedKey)
    }
}

/// Error of a text that has not the form of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: one is tgk_, 8 characters, _, 43 characters, _, 6 characters; copy it again as a whole")]
pub struct MalformedKey;

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_key_parses_and_hides_its_secret() {
        let key = SecretKey::random();
        assert_eq!(key.text().len(), 63);
        assert_eq!(key.text().parse::<SecretKey>().unwrap(), key);
        assert!(key.has_hash(&key.hash()) && !key.has_hash(&SecretKey::random().hash()));
        assert!(!format!("{key:?}").contains(key.secret()), "{key:?}");
        assert!(is_id(key.id()));
    }

    #[test]
    fn key_with_one_changed_character_is_malformed() {
        let text = SecretKey::random().text().to_owned();
        for at in 0..text.len() {
            let other = if &text[at..=at] == "x" { "y" } else { "x" };
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert_eq!(changed.parse::<SecretKey>(), Err(MalformedKey), "{at}");
        }
        for wrong in ["", "tgk_", &text[1..], &text[..62], &format!("{text} "), &"é".repeat(31)] {
            assert_eq!(wrong.parse::<SecretKey>(), Err(MalformedKey), "{wrong}");
        }
    }

    #[test]
    fn checksum_is_the_documented_one() {
        // SHA-256 of the empty text begins with e3b0c44298fc1c14.
        let mut number = 0xe3b0_c442_98fc_1c14_u64;
        let mut expected = Vec::new();
        for _ in 0..6 {
            expected.insert(0, char::from(DIGITS[(number % 62) as usize]));
            number /= 62;
        }
        assert_eq!(checksum(""), expected.into_iter().collect::<String>());
    }
}
