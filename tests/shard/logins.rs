//! Many logins at once whose tokens have costly signatures: other connections of the shard go on.

use std::sync::{Arc, mpsc};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use serde_json::json;
use tidegate::auth::{ClaimRules, Keyring, SigningKey, TokenKey, Verifier};

use crate::{
    connect_as, id, login,
    manual_shards::{KEY, ManualShards, Sockets, push_to},
    support::{Client, ServerBody, hello, text_of},
};

/// Logins of each algorithm.
const LOGINS: usize = 12;

/// Latest turn in which the last login has its answer.
const TURNS_MAX: usize = 1_000;

/// Key pair of one algorithm: the part that signs, and the part that verifies.
fn pair(algorithm: &'static rcgen::SignatureAlgorithm, kid: &str) -> (SigningKey, TokenKey) {
    let pair = KeyPair::generate_for(algorithm).expect("a key");
    let signing = SigningKey::from_pem(pair.serialize_pem().as_bytes()).expect("a supported kind");
    (signing, TokenKey::from_pem(pair.public_key_pem().as_bytes(), Some(kid)).expect("a supported kind"))
}

#[test]
fn logins_with_costly_signatures_delay_no_other_connection() {
    let ((rsa, rsa_key), (p256, p256_key)) =
        (pair(&PKCS_RSA_SHA256, "r"), pair(&PKCS_ECDSA_P256_SHA256, "e"));
    let services = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    // The only thread that may block is taken, so no signature is checked unless a shard does it.
    let (release, released) = mpsc::sync_channel::<()>(1);
    services.spawn_blocking(move || released.recv().ok());
    let mut shards = ManualShards::<Sockets>::new(1, |context, _| {
        let keys = vec![TokenKey::hs256(KEY, None), rsa_key, p256_key];
        let keyring = Arc::new(Keyring::new(keys, None));
        context.verifier = Arc::new(Verifier::new(keyring, ClaimRules::default()));
        context.runtime = services.handle().clone();
    });
    let mut bob = login(&mut shards, 0, "bob", &[]);
    let mut waiting: Vec<Client> = Vec::new();
    for n in 0..LOGINS {
        for (key, kid) in [(&rsa, "r"), (&p256, "e")] {
            let claims = json!({"sub": format!("{kid}-{n}"), "exp": 4_000_000_000_u64});
            let token = key.sign(Some(kid), &claims).expect("a token");
            waiting.push(connect_as(&mut shards, 0, hello(&token, "d")));
        }
    }
    (0..3).for_each(|_| shards.turn(0));
    assert!(!shards.answer_logins(0, &[]), "a shard has checked a signature itself");
    assert!(shards.push(0, push_to("bob", &id("d:alice:bob"), 1, "meanwhile")));
    shards.turn(0);
    assert_eq!(text_of(&bob.expect_push()), "meanwhile");
    let _carol = login(&mut shards, 0, "carol", &[]);
    release.send(()).expect("the thread waits");
    let mut turns = 0;
    while waiting.iter_mut().any(|client| !is_welcome(client)) {
        shards.turn(0);
        while shards.answer_logins(0, &[]) {}
        turns += 1;
        assert!(turns < TURNS_MAX, "logins are missing");
    }
}

/// Returns whether the login has its answer, which must be good.
fn is_welcome(client: &mut Client) -> bool {
    client.listen(std::time::Duration::from_millis(1));
    let Some(frame) = client.inbox.iter().find(|frame| frame.id == 1) else { return false };
    assert!(matches!(frame.body, Some(ServerBody::Welcome(_))), "{frame:?}");
    true
}
