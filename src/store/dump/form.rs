//! JSON forms of ids, hashes, bytes and codes, for serde.

/// Values written by `Display` and read by `FromStr`.
pub(super) mod text {
    use std::{borrow::Cow, fmt::Display, str::FromStr};

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(it: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(it)
    }

    pub(in super::super) fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        Cow::<str>::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Hashes of 16 bytes, as 32 hex digits.
pub(super) mod hex {
    use std::borrow::Cow;

    use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use tidegate_protocol::record::Hash16;

    pub(in super::super) fn serialize<S: Serializer>(it: &Hash16, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&HEXLOWER.encode_display(it))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hash16, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).unwrap_or_default();
        bytes.try_into().map_err(|_| D::Error::custom("not 32 hex digits"))
    }
}

/// Bytes, in base64.
pub(super) mod base64 {
    use std::borrow::Cow;

    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(it: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(it))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        BASE64_STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}

/// Codes, by name; those of the application by number.
pub(super) mod code {
    use std::borrow::Cow;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};
    use tidegate_protocol::Code;

    pub(in super::super) fn serialize<S: Serializer>(it: &Option<Code>, to: S) -> Result<S::Ok, S::Error> {
        let text = |code: Code| match code {
            Code::Application(code) => Cow::Owned(code.number().to_string()),
            code => Cow::Borrowed(code.name()),
        };
        it.map(text).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Code>, D::Error> {
        let Some(name) = Option::<Cow<'_, str>>::deserialize(from)? else { return Ok(None) };
        Code::named(&name).map(Some).ok_or_else(|| D::Error::custom(format!("{name} is not a code")))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use tidegate_protocol::Code;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Key(#[serde(with = "super::code")] Option<Code>);

    #[test]
    fn codes_are_names_and_those_of_the_application_are_numbers() {
        for (code, json) in
            [(None, "null"), (Some(Code::Muted), "\"MUTED\""), (Code::from_number(5_001), "\"5001\"")]
        {
            assert_eq!(serde_json::to_string(&Key(code)).unwrap(), json);
            assert_eq!(serde_json::from_str::<Key>(json).unwrap(), Key(code));
        }
        assert!(serde_json::from_str::<Key>("\"6000\"").is_err());
    }
}
