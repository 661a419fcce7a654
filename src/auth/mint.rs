//! Signing of tokens, for development and for `tidegate token mint`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeyPair as RsaKeyPair,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256},
};
use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};

use super::claims::Claims;
use crate::private;

/// Signs a development token for `user` that expires after `ttl`.
pub fn sign(key: &[u8], user: &str, device: Option<&str>, ttl: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    sign_until(key, user, device, (now + ttl).as_secs())
}

/// Signs a development token for `user`, issued now, that expires at `exp`, in seconds since 1970.
pub fn sign_until(key: &[u8], user: &str, device: Option<&str>, exp: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let claims = Claims {
        sub: user.to_owned(),
        exp,
        dev: device.map(str::to_owned),
        iat: Some(now.as_millis() as f64 / 1_000.0),
        ..Claims::default()
    };
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(key))
        .expect("HS256 over a small JSON object can't fail")
}

/// Key that signs tokens; its kind decides on the algorithm.
pub enum SigningKey {
    /// HS256.
    Secret(Vec<u8>),
    /// RS256.
    Rsa(Box<RsaKeyPair>),
    /// ES256.
    P256(Box<EcdsaKeyPair>),
    /// EdDSA.
    Ed25519(Box<Ed25519KeyPair>),
}

impl SigningKey {
    /// Parses a private key in PEM.
    ///
    /// # Errors
    /// It is none of a supported kind; the text names the cure.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
            let why = private::pem_problem(&error);
            format!("no private key in it ({why}); name a PEM file that is not encrypted")
        })?;
        let der = der.secret_der();
        let rsa = RsaKeyPair::from_pkcs8(der).or_else(|_| RsaKeyPair::from_der(der));
        if let Ok(pair) = rsa {
            return Ok(Self::Rsa(Box::new(pair)));
        }
        let p256 = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let ecdsa =
            EcdsaKeyPair::from_pkcs8(p256, der).or_else(|_| EcdsaKeyPair::from_private_key_der(p256, der));
        if let Ok(pair) = ecdsa {
            return Ok(Self::P256(Box::new(pair)));
        }
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map(|pair| Self::Ed25519(Box::new(pair))).map_err(
            |_| "a private key of another kind; use RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA)".to_owned(),
        )
    }

    /// Returns the algorithm of its tokens.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Secret(_) => "HS256",
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn sign(&self, id: Option<&str>, claims: &Value) -> Result<String, String> {
        let mut head = json!({"alg": self.algorithm(), "typ": "JWT"});
        if let Some(id) = id {
            head["kid"] = id.into();
        }
        let encode = |part: &Value| BASE64URL_NOPAD.encode(part.to_string().as_bytes());
        let signed = format!("{}.{}", encode(&head), encode(claims));
        let (bytes, random) = (signed.as_bytes(), SystemRandom::new());
        let failed = |_| "the key can't sign".to_owned();
        let signature = match self {
            Self::Secret(secret) => {
                let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
                aws_lc_rs::hmac::sign(&key, bytes).as_ref().to_vec()
            }
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature).map_err(failed)?;
                signature
            }
            Self::P256(pair) => pair.sign(&random, bytes).map_err(failed)?.as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
        };
        Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature)))
    }
}
