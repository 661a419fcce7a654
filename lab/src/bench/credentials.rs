//! Certificate of the servers of a run, and the keys that sign and verify tokens.

use super::{
    admin,
    child::Launcher,
    login_kind::{LoginAlgorithm, name},
};
use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum as _;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};
use tidegate::auth::{self, SigningKey};

/// Name of the certificate.
pub(super) const SERVER_NAME: &str = "localhost";

/// Lifetime of a token in seconds.
const TOKEN_LIFETIME_S: u64 = 86_400;

/// Files of a run: a certificate that `tidegate cert` made, and a key for each algorithm.
pub(super) struct Credentials(PathBuf);

impl Credentials {
    /// Creates the files in the directory of the run.
    pub(super) fn create(launcher: &Launcher) -> Result<Self> {
        let folder = launcher.directory.join("credentials");
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(&launcher.tidegate);
        command.arg("cert").arg("--out").arg(&folder).stdout(Stdio::null());
        ensure!(command.status().context("tidegate cert")?.success(), "`tidegate cert` failed");
        auth::create_key(&folder.join("token.key"))?;
        for algorithm in LoginAlgorithm::value_variants() {
            let kind = match algorithm {
                LoginAlgorithm::Hs256 => continue,
                LoginAlgorithm::Rs256 => &PKCS_RSA_SHA256,
                LoginAlgorithm::Es256 => &PKCS_ECDSA_P256_SHA256,
                LoginAlgorithm::EdDsa => &PKCS_ED25519,
            };
            let pair = KeyPair::generate_for(kind)?;
            fs::write(private_key(&folder, *algorithm), pair.serialize_pem())?;
            fs::write(folder.join(format!("{}.pub", name(algorithm))), pair.public_key_pem())?;
        }
        Ok(Self(folder))
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.0.join("node.pem")
    }

    pub(super) fn key(&self) -> PathBuf {
        self.0.join("node.key")
    }

    /// Returns a launcher whose nodes offer TLS on the client port, and whose load generators use it.
    pub(super) fn with_tls(&self, launcher: &Launcher) -> Launcher {
        let mut launcher = launcher.clone();
        launcher.basics.extend([
            format!("tls.cert_files=[{}]", self.certificate().display()),
            format!("tls.key_files=[{}]", self.key().display()),
        ]);
        launcher.authority = Some(self.0.join("ca.pem"));
        launcher
    }

    /// Returns a launcher whose nodes accept tokens of all algorithms; `label` names the node that will be started.
    pub(super) fn with_keys(&self, launcher: &Launcher, label: &str) -> Result<Launcher> {
        let key = self.0.join("token.key");
        // A command that starts a node looks for the key here.
        let data = launcher.directory.join(label);
        fs::create_dir_all(&data)?;
        fs::copy(&key, data.join("token.key"))?;
        let public = LoginAlgorithm::value_variants().iter().filter(|it| **it != LoginAlgorithm::Hs256);
        let public: Vec<String> =
            public.map(name).map(|id| format!("{id}={}/{id}.pub", self.0.display())).collect();
        let mut launcher = launcher.clone();
        launcher.basics.extend([
            format!("auth.key_file={}", key.display()),
            format!("auth.key_files=[{}]", public.join(", ")),
        ]);
        launcher.credentials = Some(self.0.clone());
        Ok(launcher)
    }
}

fn private_key(folder: &Path, algorithm: LoginAlgorithm) -> PathBuf {
    folder.join(format!("{}.pem", name(&algorithm)))
}

/// Signer of the tokens of a load generator.
pub(super) enum Signer {
    /// With the HS256 key of a node.
    Shared(Vec<u8>),
    /// With a private key; the `kid` is the name of its algorithm.
    Private(Box<SigningKey>),
}

impl Signer {
    /// Reads the private key of `algorithm` from the folder of [`Credentials`].
    pub(super) fn read(folder: &Path, algorithm: LoginAlgorithm) -> Result<Self> {
        let file = private_key(folder, algorithm);
        let pem = fs::read(&file).with_context(|| file.display().to_string())?;
        Ok(Self::Private(Box::new(SigningKey::from_pem(&pem).map_err(|error| anyhow!(error))?)))
    }

    /// Returns a token of `user` that no earlier one equals: a node caches verified tokens.
    pub(super) fn token(&self, user: &str) -> Result<String> {
        match self {
            Self::Shared(key) => Ok(admin::token(key, user)),
            Self::Private(key) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let id = format!("{:x}", rand::random::<u64>());
                let claims = json!({"sub": user, "iat": now, "exp": now + TOKEN_LIFETIME_S, "jti": id});
                key.sign(Some(key.algorithm()), &claims).map_err(|error| anyhow!(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::auth::TokenKey;

    #[test]
    fn tokens_are_never_the_same_and_name_their_algorithm() {
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let key = SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap();
        assert!(TokenKey::from_pem(pair.public_key_pem().as_bytes(), Some("EdDSA")).is_ok());
        let signer = Signer::Private(Box::new(key));
        let (one, two) = (signer.token("u1").unwrap(), signer.token("u1").unwrap());
        assert_ne!(one, two);
        assert_eq!(one.split('.').next(), two.split('.').next());
        let shared = Signer::Shared(vec![7; 32]).token("u1").unwrap();
        assert_eq!(shared.split('.').count(), 3);
    }
}
