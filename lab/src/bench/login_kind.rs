//! Kinds of logins: the algorithm of the token, and the TLS handshake before it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Algorithm of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum LoginAlgorithm {
    /// A secret that the issuer shares with the node.
    #[default]
    #[value(name = "HS256")]
    Hs256,
    /// RSA with 2,048 bits.
    #[value(name = "RS256")]
    Rs256,
    /// ECDSA on P-256.
    #[value(name = "ES256")]
    Es256,
    /// Ed25519.
    #[value(name = "EdDSA")]
    EdDsa,
}

/// TLS handshake of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum LoginHandshake {
    /// A connection without TLS.
    #[default]
    None,
    /// A handshake with certificate and signature.
    Full,
    /// A handshake with a ticket of an earlier connection.
    Resumed,
}

/// Values of an option: one, several separated by commas, or `all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<T>(pub Vec<T>);

impl<T: ValueEnum + PartialEq> FromStr for Chosen<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(T::value_variants().to_vec()));
        }
        let mut chosen = Vec::new();
        for part in text.split(',') {
            let value = T::from_str(part, true).map_err(|_| {
                let names: Vec<String> = T::value_variants().iter().map(name).collect();
                format!("{part:?} is none of {}, all", names.join(", "))
            })?;
            if chosen.contains(&value) {
                return Err(format!("{part} is named twice"));
            }
            chosen.push(value);
        }
        Ok(Self(chosen))
    }
}

/// Returns the name of a value on the command line and in reports.
pub(super) fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_one_several_or_all() {
        use {LoginAlgorithm as A, LoginHandshake as H};
        assert_eq!("all".parse(), Ok(Chosen(vec![A::Hs256, A::Rs256, A::Es256, A::EdDsa])));
        assert_eq!("EdDSA,hs256".parse(), Ok(Chosen(vec![A::EdDsa, A::Hs256])));
        assert_eq!("all".parse(), Ok(Chosen(vec![H::None, H::Full, H::Resumed])));
        assert_eq!("resumed".parse(), Ok(Chosen(vec![H::Resumed])));
        for wrong in ["", "HS512", "HS256,", "HS256,HS256", "all,HS256"] {
            assert!(wrong.parse::<Chosen<A>>().is_err(), "{wrong:?}");
        }
        let error = "half".parse::<Chosen<H>>().unwrap_err();
        assert!(error.contains("none, full, resumed, all"), "{error}");
    }
}
