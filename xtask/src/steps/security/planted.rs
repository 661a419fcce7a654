//! Planted secrets by their inputs, and the search for them in an output.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Read as _,
    path::Path,
};

use anyhow::{Context as _, bail, ensure};

use crate::server::ServerNode;

/// Secrets by the name of their input.
#[derive(Default)]
pub(super) struct Planted(Vec<(String, String)>);

impl Planted {
    /// Returns a new secret for this input.
    pub(super) fn secret(&mut self, input: &str) -> anyhow::Result<String> {
        let secret = format!("sEcReT{}", hex(&random::<12>()?));
        self.add(input, &secret);
        Ok(secret)
    }

    /// Returns a new secret of 32 bytes in base64.
    pub(super) fn base64(&mut self, input: &str) -> anyhow::Result<String> {
        // Any 43 characters and the padding that zero bits at the end allow.
        let secret = format!("{}AAA=", &hex(&random::<32>()?)[..40]);
        self.add(input, &secret);
        Ok(secret)
    }

    /// Adds a secret of another form.
    pub(super) fn add(&mut self, input: &str, secret: &str) {
        self.0.push((input.to_owned(), secret.to_owned()));
    }

    /// Adds the content of a file.
    pub(super) fn add_file(&mut self, input: &str, file: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        ensure!(text.trim().len() >= 16, "{} has no secret", file.display());
        self.add(input, text.trim());
        Ok(())
    }

    /// Adds the first line of the content of a file in PEM.
    pub(super) fn add_pem(&mut self, input: &str, file: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        self.add(input, text.lines().nth(1).context("a key has lines of base64")?);
        Ok(())
    }

    /// Adds the parts of a token that are worth something.
    pub(super) fn add_token(&mut self, token: &str) {
        token.split('.').skip(1).for_each(|part| self.add("a token", part));
    }

    /// Fails if one of the secrets is in the output, or the output lacks what shows that it was written at all.
    pub(super) fn check(&self, output: &str, text: &str, shows: &str) -> anyhow::Result<()> {
        ensure!(text.contains(shows), "{output}: no `{shows}` is in it, so nothing was searched");
        for (input, secret) in &self.0 {
            let Some(at) = text.find(secret.as_str()) else { continue };
            let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let around: String = text[line..].chars().take(600).collect();
            bail!("the secret of {input} is in {output}: {around}");
        }
        Ok(())
    }

    /// Checks the log of a node; returns the number of checks.
    pub(super) fn check_log(&self, node: &ServerNode) -> anyhow::Result<usize> {
        let log = fs::read(node.log()).context("the node has a log")?;
        self.check("the log", &String::from_utf8_lossy(&log), "tidegate")?;
        Ok(self.0.len())
    }
}

pub(super) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String succeeds.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_in_an_output_and_an_empty_output_are_found() {
        let mut planted = Planted::default();
        let secret = planted.secret("a message").expect("random bytes");
        planted.check("the log", "login of bob", "bob").expect("clean");
        let error = planted.check("the log", &format!("bob\nsent {secret}"), "bob").expect_err("it is there");
        assert_eq!(error.to_string(), format!("the secret of a message is in the log: sent {secret}"));
        assert!(planted.check("the log", "", "bob").is_err());
    }
}
