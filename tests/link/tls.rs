//! TLS of the link: the switch of a running cluster, changed files, and callers with certificates of other names.

use std::{fs, sync::Arc};

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use tidegate::link::{LinkError, Settings, Tls, TlsMode};

use super::{Authority, End, call, caller, fresh_folder, knowing, listen, node, opened, with, write};

/// Calls a peer with these settings, from a node with the others.
async fn reaches(there: Settings, here: Settings) -> Result<(), String> {
    let (end, peer) = (Arc::new(End::default()), node("there", 1));
    let listener = listen(peer.clone(), &end, there);
    let link = caller(here, &[(peer.clone(), listener.address())]);
    match call(&link, &peer).await {
        Ok(()) => Ok(()),
        Err(LinkError::Unavailable(why)) => Err(why),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nodes_switch_to_tls_one_after_the_other() {
    let ours = Authority::new();
    let secret = || knowing("a secret that all nodes have");
    let mode = |mode: TlsMode| {
        let tls = ours.node("127.0.0.1", &ours).with_mode(mode);
        Settings { secret: secret().secret, ..with(tls) }
    };
    let steps = [secret(), mode(TlsMode::Accept), mode(TlsMode::Prefer), mode(TlsMode::Required)];
    for pair in steps.windows(2) {
        for (there, here) in [(0, 1), (1, 0), (1, 1)] {
            let (there, here) = (pair[there].clone(), pair[here].clone());
            assert_eq!(reaches(there.clone(), here.clone()).await, Ok(()), "{there:?} {here:?}");
        }
    }
    let refused = reaches(steps[3].clone(), steps[1].clone()).await;
    assert!(refused.is_err(), "`required` accepts no caller without TLS");
    let stranger = Settings { secret: knowing("another secret, of a stranger").secret, ..steps[0].clone() };
    let refused = reaches(steps[1].clone(), stranger).await.unwrap_err();
    assert!(refused.contains("link.secret_file"), "a caller without TLS has to prove the secret: {refused}");
}

#[tokio::test]
async fn changed_files_count_for_new_connections_and_keep_old_ones() {
    let (former, next) = (Authority::new(), Authority::new());
    let folder = fresh_folder();
    let write = |authority: &Authority| write(&folder, &authority.pem("127.0.0.1"), &authority.0.pem());
    let files = write(&former);
    let tls = Tls::open(files.clone()).unwrap();
    let (end, peer) = (Arc::new(End::default()), node("there", 1));
    let listener = listen(peer.clone(), &end, with(tls.clone()));
    let peers = [(peer.clone(), listener.address())];
    let before = caller(with(tls), &peers);
    assert_eq!(call(&before, &peer).await, Ok(()));
    let watched = before.certificates().unwrap();
    assert!(!watched.have_changed());
    write(&next);
    assert!(watched.have_changed());
    watched.reload().unwrap();
    assert!(!watched.have_changed());
    assert_eq!(call(&before, &peer).await, Ok(()), "its connection stays");
    let of = |authority: &Authority| caller(with(authority.node("127.0.0.1", authority)), &peers);
    assert_eq!(call(&of(&next), &peer).await, Ok(()));
    assert!(call(&of(&former), &peer).await.is_err(), "the former authority");
    fs::write(&files.certificate, "no certificate").unwrap();
    let broken = format!("{:#}", watched.reload().unwrap_err());
    assert!(broken.contains("link.tls_cert"), "{broken}");
    assert_eq!(call(&of(&next), &peer).await, Ok(()), "the former certificate stays in force");
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn callers_need_a_certificate_for_the_shared_name() {
    let ours = Authority::new();
    let named = |host: &str| with(ours.node(host, &ours).with_name("nodes.example").unwrap());
    assert_eq!(reaches(named("nodes.example"), named("nodes.example")).await, Ok(()));
    assert!(reaches(named("nodes.example"), named("crm.example")).await.is_err());
}

#[tokio::test]
async fn caller_with_the_certificate_of_a_client_is_refused() {
    let (ours, host) = (Authority::new(), "127.0.0.1");
    for (usages, is_node) in [(vec![], true), (vec![ClientAuth, ServerAuth], true), (vec![ClientAuth], false)]
    {
        let tls = opened(&ours.pem_for(host, &usages), &ours.0.pem()).unwrap();
        let reached = reaches(with(ours.node(host, &ours)), with(tls)).await;
        assert_eq!(reached.is_ok(), is_node, "{usages:?}: {reached:?}");
    }
}
