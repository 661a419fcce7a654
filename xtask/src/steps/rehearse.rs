//! `cargo xtask rehearse`: rehearses a rollout without Kubernetes, as kubelet and StatefulSet of real processes.
//!
//! Every number comes from the rendered manifests: probes, ports, settings, `preStop`, grace, replicas and order. Only the
//! addresses differ. Clients send messages throughout, and must miss none. Then faults are planted into the manifests; each
//! must make the rehearsal fail.

pub(crate) mod clients;
pub(crate) mod plan;
mod pod;

use std::{
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::{
    clients::Talk,
    plan::{Place, Plan},
    pod::Pod,
};
use super::manifests::{self, render};
use crate::{
    services,
    shell::{self, Shell},
};

/// Servers that are started for the rehearsal.
const WANTED: &[&str] = &["kafka", "redis7", "postgres"];

/// Pairs of clients.
const PAIRS: usize = 6;
/// Interval between two steps of the kubelets.
const STEP_INTERVAL: Duration = Duration::from_millis(50);

/// Ports of the ready pods, as the endpoints of a Service.
pub(crate) type Endpoints = Arc<Mutex<Vec<u16>>>;

/// Runs the step `rehearsal`.
pub(crate) fn step(shell: &Shell) -> anyhow::Result<()> {
    run(shell, "base")
}

/// Rehearses a rollout of `k8s/<overlay>`.
pub(crate) fn run(shell: &Shell, overlay: &str) -> anyhow::Result<()> {
    let shell = shell.apart(shell::SERVICES_OF_REHEARSAL, WANTED);
    let documents = &render::render(&shell, &format!("k8s/{overlay}"))?;
    let folder = shell.scratch("rehearsal")?;
    on_paper(&shell, documents, &folder)?;
    services::with_new(&shell, |list| {
        let place = place(&shell, &folder, list)?;
        rehearse(&Plan::of(documents, "the manifests as they are")?, &place)?;
        for (what, expected, planted) in plants(documents) {
            let fresh = Plan { replicas: 1, ..Plan::of(&planted, what)? };
            let Err(error) = rehearse(&fresh, &place) else {
                bail!("the rehearsal found nothing wrong with {what}");
            };
            let message = format!("{error:#}");
            if !message.contains(expected) {
                return Err(error.context(format!("with {what} it failed in another way than {expected:?}")));
            }
            println!("planted: {what}: {message}");
        }
        Ok(())
    })
}

/// Checks by the binary that the grace period fits the drain of a full node, which the few clients here can't show.
fn on_paper(shell: &Shell, documents: &[Value], folder: &Path) -> anyhow::Result<()> {
    let plan = Plan::of(documents, "on paper")?;
    let needed = manifests::granted(shell, documents, folder)? + plan.before.as_secs();
    if plan.grace.as_secs() < needed {
        bail!("terminationGracePeriodSeconds is {}, a full node may need {needed}", plan.grace.as_secs());
    }
    println!("a full node needs {needed} s to leave, of {} that the manifests grant", plan.grace.as_secs());
    Ok(())
}

/// Prepares the keys, servers and folders of the pods on this machine.
fn place(shell: &Shell, folder: &Path, list: &str) -> anyhow::Result<Place> {
    let keys = folder.join("keys");
    fs::create_dir_all(&keys)?;
    let secret = |seed: &str| seed.repeat(64 / seed.len());
    for (name, text) in [("token.key", secret("4c")), ("link.secret", secret("7e"))] {
        let file = keys.join(name);
        fs::write(&file, text)?;
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o440))?;
    }
    let entries: Value = serde_json::from_str(&fs::read_to_string(list)?)?;
    let of = |name: &str, key: &str| {
        entries[name][key].as_str().map(str::to_owned).with_context(|| format!("{name} has no {key}"))
    };
    let servers = vec![
        format!("kafka.brokers=[{}]", of("kafka", "address")?),
        // There is one broker.
        "kafka.replication=1".to_owned(),
        "redis.mode=standalone".to_owned(),
        format!("redis.urls=[{}]", of("redis7", "url")?),
        format!("postgres.url={}", of("postgres", "url")?),
        "postgres.password_file=".to_owned(),
    ];
    // The servers here have no certificates; nodes link without TLS, too.
    let plain = [
        "kafka.security=plaintext",
        "kafka.sasl_mechanism=",
        "kafka.sasl_username=",
        "kafka.sasl_password_file=",
        "kafka.ca_file=",
        "redis.tls=false",
        "redis.tls_ca_file=",
        "redis.password_file=",
        "postgres.tls=false",
        "postgres.tls_ca_file=",
        "link.tls_cert=",
        "link.tls_key=",
        "link.tls_ca=",
        "link.tls_name=",
    ];
    let servers = servers.into_iter().chain(plain.map(str::to_owned)).collect();
    Ok(Place { program: shell.built("tidegate"), folder: folder.to_owned(), keys, servers })
}

/// Starts the pods, rolls them one after the other under load, and stops them.
fn rehearse(plan: &Plan, place: &Place) -> anyhow::Result<()> {
    let began = Instant::now();
    let endpoints = Endpoints::default();
    let mut pods =
        (0..plan.replicas).map(|nth| Pod::begin(plan, place, nth)).collect::<anyhow::Result<Vec<_>>>()?;
    until_ready(&mut pods, &endpoints, plan.available)?;
    println!("{}: {} pods ready after {:.1} s", plan.name, pods.len(), began.elapsed().as_secs_f64());
    let talk = Talk::begin(PAIRS, &endpoints, place)?;
    if let Err(error) = roll(plan, place, &mut pods, &endpoints) {
        talk.abandon();
        return Err(error);
    }
    println!("{}", talk.end()?);
    for pod in pods.iter_mut().rev() {
        pod.delete()?;
    }
    while !settled(&mut pods, &endpoints)? {
        thread::sleep(STEP_INTERVAL);
    }
    Ok(())
}

/// Rolls the pods one at a time, the highest ordinal first, each once the previous one is ready again.
fn roll(plan: &Plan, place: &Place, pods: &mut [Pod], endpoints: &Endpoints) -> anyhow::Result<()> {
    for nth in (0..pods.len()).rev() {
        let began = Instant::now();
        pods[nth].delete()?;
        while !pods[nth].has_ended() {
            look(pods, endpoints)?;
            thread::sleep(STEP_INTERVAL);
        }
        let (left, seen) = (began.elapsed(), pods[nth].seen_leaving());
        let Some(seen) = seen else { bail!("{}: no readiness probe saw that it leaves", pods[nth].name) };
        if plan.replicas > 1 && seen >= plan.lb_delay {
            bail!(
                "{}: readiness took {seen:?} to see a drain that closes its listener after {:?}",
                pods[nth].name,
                plan.lb_delay
            );
        }
        pods[nth] = Pod::begin(plan, place, nth)?;
        until_ready(pods, endpoints, plan.available)?;
        println!(
            "{}: left within {:.1} s of {}, seen after {:.1} s; back after {:.1} s",
            pods[nth].name,
            left.as_secs_f64(),
            plan.grace.as_secs(),
            seen.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Waits until all pods are available, that is ready for `minReadySeconds`.
fn until_ready(pods: &mut [Pod], endpoints: &Endpoints, available: Duration) -> anyhow::Result<()> {
    loop {
        look(pods, endpoints)?;
        if pods.iter().all(|pod| pod.ready_for().is_some_and(|since| since >= available)) {
            return Ok(());
        }
        thread::sleep(STEP_INTERVAL);
    }
}

/// Runs one step of each pod's kubelet, and publishes the ready pods to the clients.
fn look(pods: &mut [Pod], endpoints: &Endpoints) -> anyhow::Result<()> {
    for pod in pods.iter_mut() {
        pod.look()?;
    }
    let ready = pods.iter().filter(|pod| pod.is_endpoint()).map(Pod::client_port).collect();
    *endpoints.lock() = ready;
    Ok(())
}

/// Runs one step of each kubelet, and returns whether all pods have ended.
fn settled(pods: &mut [Pod], endpoints: &Endpoints) -> anyhow::Result<bool> {
    look(pods, endpoints)?;
    Ok(pods.iter().all(Pod::has_ended))
}

/// Returns the planted faults: name, part of the error that the rehearsal must end with, and the faulty manifests.
fn plants(documents: &[Value]) -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let planted = |changes: &[(&str, Value)]| {
        let mut documents = documents.to_vec();
        for set in documents.iter_mut().filter(|it| it["kind"] == "StatefulSet") {
            let pod = &mut set["spec"]["template"]["spec"];
            for (path, value) in changes {
                if let Some(place) = pod.pointer_mut(path) {
                    *place = value.clone();
                }
            }
        }
        documents
    };
    let grace = planted(&[("/terminationGracePeriodSeconds", json!(4))]);
    let path = planted(&[
        ("/containers/0/startupProbe/httpGet/path", json!("/ready")),
        ("/containers/0/startupProbe/failureThreshold", json!(4)),
    ]);
    let blind = planted(&[("/containers/0/readinessProbe/httpGet/path", json!("/healthz"))]);
    vec![
        ("a grace of 4 s", "SIGKILL", grace),
        ("a wrong path of the startup probe", "startupProbe", path),
        ("a readiness probe that sees no drain", "no readiness probe saw", blind),
    ]
}
