//! Name of a client by its certificate.

use rustls::pki_types::CertificateDer;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer as _, X509Certificate},
};

/// Part of a certificate that names its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// Common name of the subject.
    CommonName,
    /// First DNS name of the alternative names.
    AlternativeName,
}

impl CertificateName {
    /// Returns the part of `tls.client_name`; `None` if that names none.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "cn" => Some(Self::CommonName),
            "san" => Some(Self::AlternativeName),
            _ => None,
        }
    }

    /// Returns the name of the client with this certificate chain, which is empty if the certificate has no such part;
    /// `None` without a certificate.
    pub fn of(self, chain: Option<&[CertificateDer<'_>]>) -> Option<Box<str>> {
        let certificate = chain?.first()?;
        Some(self.find(certificate).unwrap_or_default().into())
    }

    fn find(self, certificate: &CertificateDer<'_>) -> Option<String> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        match self {
            Self::CommonName => Some(parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned()),
            Self::AlternativeName => {
                let names = parsed.subject_alternative_name().ok()??;
                names.value.general_names.iter().find_map(|name| match name {
                    GeneralName::DNSName(host) => Some((*host).to_owned()),
                    _ => None,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn name_is_that_part_of_the_first_certificate() {
        let der = |common: Option<&str>, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            if let Some(common) = common {
                params.distinguished_name.push(DnType::CommonName, common);
            }
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let chain = [der(Some("alice"), &["127.0.0.1", "alice-laptop", "other"]), der(Some("bob"), &["bob"])];
        let of = |part: CertificateName, chain: &[CertificateDer<'_>]| part.of(Some(chain)).unwrap();
        assert_eq!(&*of(CertificateName::CommonName, &chain), "alice");
        assert_eq!(&*of(CertificateName::AlternativeName, &chain), "alice-laptop");
        let nameless = [der(None, &[])];
        for part in ["cn", "san"].map(|name| CertificateName::named(name).unwrap()) {
            assert_eq!(&*of(part, &nameless), "", "no user has an empty name");
            assert_eq!((part.of(None), part.of(Some(&[]))), (None, None));
        }
    }
}
