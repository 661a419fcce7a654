//! Signatures of requests by the Standard Webhooks specification: HMAC-SHA256 over id, time and body.

use std::{fmt, io, path::Path};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::private;

/// Prefix of a secret.
const SECRET_PREFIX: &str = "whsec_";

/// Bytes that a secret may have.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Most secrets in a file: the former one signs, too, while receivers change.
const SECRETS_MAX: usize = 2;

/// Returns whether a text is one secret, `whsec_` and the base64 of 24 to 64 bytes.
pub(crate) fn is_secret(text: &str) -> bool {
    !text.contains(char::is_whitespace) && Signer::parse(text).is_some_and(|signer| signer.0.len() == 1)
}

/// Keys that sign requests.
pub(crate) struct Signer(Vec<hmac::Key>);

/// Shows the number of keys only.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} keys)", self.0.len())
    }
}

impl Signer {
    /// Reads a file with one or two secrets, one a line, each `whsec_` and the base64 of 24 to 64 bytes.
    ///
    /// # Errors
    /// The file can't be read, is open to other accounts, or has another form. The text has nothing of the content.
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        let text = private::read(file)?;
        let text = std::str::from_utf8(&text).ok();
        text.and_then(Self::parse).ok_or_else(|| {
            let what = "one or two lines `whsec_…`, each with the base64 of 24 to 64 random bytes: \
                        echo whsec_$(openssl rand -base64 32)";
            io::Error::new(io::ErrorKind::InvalidData, format!("the file has to have {what}"))
        })
    }

    /// Parses the content of a file of secrets.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let key = |line: &str| {
            let secret = STANDARD.decode(line.strip_prefix(SECRET_PREFIX)?).ok()?;
            SECRET_BYTES.contains(&secret.len()).then(|| hmac::Key::new(hmac::HMAC_SHA256, &secret))
        };
        let keys: Vec<hmac::Key> = lines.map(key).collect::<Option<_>>()?;
        (1..=SECRETS_MAX).contains(&keys.len()).then_some(Self(keys))
    }

    /// Returns the value of `webhook-signature` for a request with this id, time in seconds since 1970, and body.
    pub(crate) fn sign(&self, id: &str, time_s: u64, body: &[u8]) -> String {
        let sign = |key: &hmac::Key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{time_s}.").as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        };
        self.0.iter().map(sign).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_that_of_the_specification() {
        // The example of the specification's reference libraries.
        let signer = Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn second_secret_adds_a_signature() {
        let (one, two) =
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", format!("whsec_{}", STANDARD.encode([7; 32])));
        let both = Signer::parse(&format!("{one}\n{two}")).unwrap().sign("a", 1, b"x");
        let shown = format!("{:?}", Signer::parse(&format!("{one}\n{two}")));
        assert_eq!(shown, "Some(Signer(2 keys))");
        let of = |secret: &str| Signer::parse(secret).unwrap().sign("a", 1, b"x");
        assert_eq!(both, format!("{} {}", of(one), of(&two)));
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let long = format!("whsec_{}", STANDARD.encode([7; 65]));
        for wrong in ["", &one[6..], "whsec_!", &short, &long, &format!("{one}\n{one}\n{one}")] {
            assert!(Signer::parse(wrong).is_none(), "{wrong}");
        }
    }
}
