//! Parts of what `serve` and `up` print when they have started: development tokens, and commands to paste into a shell.

use std::{borrow::Cow, env, io::IsTerminal as _, time::Duration};

use crate::auth;

/// Lifetime of printed tokens.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3_600);

/// The program as it was called, for a shell.
pub(super) fn program() -> String {
    quoted(&env::args().next().unwrap_or_else(|| "tidegate".into())).into_owned()
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

/// Prints tokens for alice and bob to a terminal, and elsewhere the command that makes one: what is not a terminal may be a log, which
/// others read. `key` is the node's own; none if operators gave it one, because its tokens are worth more than a first try.
pub(super) fn tokens(key: Option<&[u8]>, command: &str) {
    println!();
    match key.filter(|_| std::io::stdout().is_terminal()) {
        Some(key) => {
            for user in ["alice", "bob"] {
                println!("  token for {user}: {}", auth::sign(key, user, None, TOKEN_TTL));
            }
        }
        None => {
            println!("  a token, for development:");
            println!("    {command}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_expand_them() {
        for plain in ["target/release/tidegate", "./tidegate", "/srv/n1", "a=b:c@d%e+f,g_h-i"] {
            assert_eq!(quoted(plain), plain);
        }
        for (word, typed) in
            [("my data", "'my data'"), ("it's", r"'it'\''s'"), ("$HOME", "'$HOME'"), ("~", "'~'"), ("", "''")]
        {
            assert_eq!(quoted(word), typed);
        }
    }
}
