//! Choice of the certificate for a client, by the server name and the signature schemes that it offers.

use std::sync::Arc;

use rustls::{
    SignatureScheme,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer as _, X509Certificate},
};

/// Certificate, and the names it is valid for, parsed once.
#[derive(Debug)]
struct Named {
    key: Arc<CertifiedKey>,
    /// Host names in lower case; the first label may be `*`.
    names: Vec<String>,
}

/// Certificates in the order of the configuration. A client gets the first one that is valid for its name and whose key
/// signs by one of its schemes; if there is none, the first that signs by one of them.
#[derive(Debug)]
pub(super) struct ByName(Vec<Named>);

impl ByName {
    pub(super) fn new(keys: Vec<Arc<CertifiedKey>>) -> Self {
        Self(keys.into_iter().map(|key| Named { names: host_names(&key), key }).collect())
    }

    fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let signs = |it: &&Named| it.key.key.choose_scheme(schemes).is_some();
        let is_valid = |it: &&Named| name.is_some_and(|name| it.is_valid_for(name));
        let all = || self.0.iter();
        let found = all().filter(is_valid).find(signs).or_else(|| all().find(signs));
        found.or_else(|| all().next()).map(|it| &it.key)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name(), hello.signature_schemes()).cloned()
    }
}

impl Named {
    fn is_valid_for(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|own| match own.strip_prefix("*.") {
            Some(domain) => parent == Some(domain),
            None => *own == name,
        })
    }
}

/// Returns the host names of a certificate.
fn host_names(key: &CertifiedKey) -> Vec<String> {
    let Ok(certificate) = key.end_entity_cert() else { return Vec::new() };
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(host) => Some(host.to_ascii_lowercase()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(host).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};
    use rustls::{crypto::aws_lc_rs, pki_types::PrivateKeyDer};

    use super::*;

    const P256: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
    const ED25519: SignatureScheme = SignatureScheme::ED25519;

    fn certified(names: &[&str], algorithm: &'static SignatureAlgorithm) -> Arc<CertifiedKey> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let chain = vec![certificate.der().clone()];
        Arc::new(CertifiedKey::from_der(chain, private, &aws_lc_rs::default_provider()).unwrap())
    }

    #[test]
    fn certificate_is_valid_for_the_name_and_signs_by_a_scheme_of_the_client() {
        let keys = [
            certified(&["first.example"], &PKCS_ECDSA_P256_SHA256),
            certified(&["A.example", "*.b.example"], &PKCS_ED25519),
            certified(&["a.example"], &PKCS_ECDSA_P256_SHA256),
        ];
        let by_name = ByName::new(keys.to_vec());
        let both = &[P256, ED25519][..];
        for (name, schemes, nth) in [
            (Some("a.EXAMPLE"), both, 1),
            (Some("x.b.example"), both, 1),
            (Some("a.example"), &[P256][..], 2),
            // Not valid for the name, but the client can at least tell so.
            (Some("x.b.example"), &[P256], 0),
            (Some("b.example"), both, 0),
            (Some("x.y.b.example"), both, 0),
            (None, both, 0),
            (None, &[ED25519], 1),
            (None, &[], 0),
        ] {
            let found = by_name.find(name, schemes).unwrap();
            assert!(Arc::ptr_eq(found, &keys[nth]), "{name:?} with {schemes:?}");
        }
    }
}
