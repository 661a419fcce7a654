//! Parts of the greeting of `serve` and `up`: development tokens, and commands to paste into a shell.

use std::{
    borrow::Cow,
    env, fmt,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use crate::{auth, config::ConsoleMode};

/// Lifetime of printed tokens.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3_600);

/// Returns the program as it was called, quoted for a shell.
pub(in crate::cli) fn program() -> String {
    quoted(&env::args().next().unwrap_or_else(|| "tidegate".into())).into_owned()
}

/// Quotes a word for a shell, if it needs quotes.
pub(in crate::cli) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

/// Prints a line of a greeting. A closed pipe ends no node.
pub(in crate::cli) fn line(text: impl fmt::Display) {
    writeln!(io::stdout(), "{text}").ok();
}

/// Prints what the console at this URL is for; nothing if it is off.
pub(in crate::cli) fn console(mode: ConsoleMode, is_development: bool, url: &str) {
    let purpose = match (mode, is_development) {
        (ConsoleMode::Off, _) => return,
        (ConsoleMode::Full, true) => "alice and bob talk; cut their links, and see that nothing is lost",
        (ConsoleMode::Full, false) => "the nodes, their clients and messages",
        (ConsoleMode::Read, _) => "the nodes, their clients and messages; it changes nothing",
    };
    line("");
    line(format_args!("  open {url} in a browser: {purpose}"));
}

/// Prints tokens for alice and bob to a terminal, and elsewhere the command that creates one, because a log may have
/// other readers. `key` is the node's own key; `None` if operators supplied one, whose tokens are too valuable to
/// print.
pub(in crate::cli) fn tokens(key: Option<&[u8]>, command: &str) {
    line("");
    match key.filter(|_| io::stdout().is_terminal()) {
        Some(key) => {
            for user in ["alice", "bob"] {
                line(format_args!("  token for {user}: {}", auth::sign(key, user, None, TOKEN_TTL)));
            }
        }
        None => {
            line(format_args!("  a token, for development:"));
            line(format_args!("    {command}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_split_or_expand_are_quoted() {
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
