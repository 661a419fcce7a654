//! Claims of a token.

use serde::{Deserialize, Serialize};

/// Claims of a token. A known claim that occurs twice makes the token invalid; unknown claims are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Claims {
    /// User.
    pub sub: String,
    /// End of validity, in seconds since 1970.
    pub exp: u64,
    /// Only device that may use the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Time of issue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iat: Option<f64>,
    /// Begin of validity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbf: Option<f64>,
    /// Issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    /// Audiences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aud: Option<OneOrMany>,
    /// Id of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// Organisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// Channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chan: Option<String>,
    /// Priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prio: Option<u8>,
    /// Rooms that the user may join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rooms: Option<Vec<String>>,
    /// Recipients that the user may write to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<String>>,
}

/// One text, or a list of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// A list.
    Many(Vec<String>),
}

impl OneOrMany {
    /// Returns the texts.
    pub(super) fn values(&self) -> &[String] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_claims_make_a_token_invalid() {
        let parse = |text: &str| serde_json::from_str::<Claims>(text).is_ok();
        assert!(parse(r#"{"sub":"ann","exp":1}"#));
        for wrong in [r#"{"sub":"ann","exp":1,"sub":"bob"}"#, r#"{"sub":"ann"}"#, r#"{"exp":1}"#] {
            assert!(!parse(wrong), "{wrong}");
        }
    }
}
