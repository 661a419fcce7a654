//! Faults planted into rendered manifests, each of which its check must report.

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{ManifestFacts, agree, render::Settings, workload};

/// In place of a kind: the kind of the object that has the pods.
const PODS: &str = "pods";

const CONFIG: &str = "ConfigMap";
const NET: &str = "NetworkPolicy";
/// Faults of the admin port, which not every folder has.
const ADMIN_FOR_ALL: &str = "administration by everybody";
const ADMIN_ELSEWHERE: &str = "another admin port";
const ADMIN_WITHOUT_KEYS: &str = "an admin port without keys";
/// Faults of the way to HTTPS servers, which not every folder has.
const NO_PROVIDER: &str = "no identity provider";
const NO_HOOKS: &str = "no hooks";
const SCALER: &str = "HorizontalPodAutoscaler";

/// A plant: (the fault, the kind of object, the path in it, the value there, a part of the problem that a check has to report); null
/// takes it away.
type Plant = (&'static str, &'static str, &'static str, Value, &'static str);

/// All plants, for manifests with these settings.
fn plants(settings: &str) -> Vec<Plant> {
    [
        of_nodes(),
        of_pods(),
        of_security(),
        of_services(),
        of_scaling(),
        of_settings(settings),
        of_encryption(settings),
        of_ways_in(),
        of_ways_out(),
    ]
    .concat()
}

/// The names of all plants.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    plants("").into_iter().map(|(what, ..)| what)
}

/// Faults of times, ports and probes of a node.
fn of_nodes() -> Vec<Plant> {
    let stop = "node/lifecycle/preStop/sleep/seconds";
    vec![
        (
            "a grace too short",
            PODS,
            "pod/terminationGracePeriodSeconds",
            json!(50),
            "PeriodSeconds is 50; preStop",
        ),
        ("a preStop too short for a balancer", PODS, stop, json!(29), "preStop is 29 s: a balancer"),
        ("a preStop too long", PODS, stop, json!(45), "preStop (45 s) and what drain-plan prints"),
        (
            "another client port",
            PODS,
            "node/ports/0/containerPort",
            json!(7801),
            "client of the pod is Some(7801)",
        ),
        (ADMIN_ELSEWHERE, PODS, "node/ports/3/containerPort", json!(7810), "the port admin of the pod is"),
        (
            ADMIN_WITHOUT_KEYS,
            PODS,
            "node/env/6",
            json!({"name": "TIDEGATE__ADMIN__KEYS_FILE"}),
            "admin.keys_file is \"\"",
        ),
        (
            "a wrong probe path",
            PODS,
            "node/readinessProbe/httpGet/path",
            json!("/ready"),
            "Probe asks for \"/ready\", which",
        ),
        (
            "a drain that ends the pod",
            PODS,
            "node/livenessProbe/httpGet/path",
            json!("/readyz"),
            "livenessProbe asks for /readyz",
        ),
        (
            "probes on the client port",
            PODS,
            "node/livenessProbe/httpGet/port",
            json!("client"),
            "livenessProbe asks the port",
        ),
        (
            "readiness too slow for a drain",
            PODS,
            "node/readinessProbe/failureThreshold",
            json!(3),
            "takes 6000 ms to see a drain",
        ),
    ]
}

/// Faults of the names of pods, of init containers, and of the place of the settings.
fn of_pods() -> Vec<Plant> {
    let id = json!({"name": "TIDEGATE__NODE__ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    let advertised = "TIDEGATE__LINK__ADVERTISE is ";
    vec![
        (
            "an unknown variable",
            PODS,
            "node/env/1/name",
            json!("TIDEGATE__NODE__NAME"),
            "__NAME is no variable",
        ),
        (
            "settings elsewhere",
            PODS,
            "node/env/0/value",
            json!("/etc/tidegate.toml"),
            "TIDEGATE_CONFIG says else",
        ),
        ("peers at another address", "Deployment", "node/env/2/value", json!("0.0.0.0:7802"), advertised),
        (
            "peers at a name",
            "StatefulSet",
            "node/env/3/value",
            json!("$(TIDEGATE__NODE__ID).tidegate-nodes:7802"),
            advertised,
        ),
        (
            "another id than the pod's name",
            "StatefulSet",
            "node/env/1/valueFrom/fieldRef/fieldPath",
            json!("metadata.uid"),
            "id is not the name of its pod",
        ),
        ("a name that changes", "Deployment", "node/env/1", id, "have names that nobody has again"),
        (
            "a rollout that does not wait",
            "Deployment",
            "/spec/minReadySeconds",
            json!(5),
            "minReadySeconds is below",
        ),
        ("no spreading", PODS, "pod/topologySpreadConstraints", Value::Null, "pods are spread over []"),
        ("no topics", PODS, "pod/initContainers/0/args", json!(["topics"]), "no init container runs ["),
        (
            "no topic for a pod",
            "StatefulSet",
            "pod/initContainers/0/args",
            json!(["topics", "ensure"]),
            "\"ensure\", \"--node\"",
        ),
    ]
}

/// Faults that give a pod too many rights, files or resources.
fn of_security() -> Vec<Plant> {
    let open = "\"tidegate\" may do more than it needs";
    let token = "a pod gets a token of Kubernetes";
    vec![
        (
            "another user than the image's",
            PODS,
            "pod/securityContext/runAsUser",
            json!(10002),
            "the pod runs as 10002:10001",
        ),
        (
            "an account that may be root",
            PODS,
            "pod/securityContext/runAsNonRoot",
            json!(false),
            "the pod runs as 10001:10001",
        ),
        ("keys that can't be read", PODS, "pod/securityContext/fsGroup", Value::Null, "its keys: fsGroup"),
        (
            "a root that can be written",
            PODS,
            "node/securityContext/readOnlyRootFilesystem",
            json!(false),
            open,
        ),
        (
            "more privileges than at the start",
            PODS,
            "node/securityContext/allowPrivilegeEscalation",
            json!(true),
            open,
        ),
        ("capabilities", PODS, "node/securityContext/capabilities/drop", json!(["NET_RAW"]), open),
        (
            "every system call",
            PODS,
            "pod/securityContext/seccompProfile/type",
            json!("Unconfined"),
            "no seccomp profile",
        ),
        (
            "memory without a limit",
            PODS,
            "node/resources/limits/memory",
            Value::Null,
            "\"tidegate\" has no memory limit",
        ),
        ("a token for the account", "ServiceAccount", "/automountServiceAccountToken", json!(true), token),
        ("a token for the pod", PODS, "pod/automountServiceAccountToken", json!(true), token),
        (
            "another account",
            PODS,
            "pod/serviceAccountName",
            json!("default"),
            "there is no ServiceAccount \"default\"",
        ),
    ]
}

/// Faults of Services, and of other objects that select pods.
fn of_services() -> Vec<Plant> {
    let labels = "/spec/selector/matchLabels";
    vec![
        (
            "another port of the Service",
            "Service",
            "/spec/ports/0/port",
            json!(80),
            "leads from 80 to Some(78",
        ),
        (
            "a port without a Service",
            "Service",
            "/spec/ports/0/targetPort",
            json!("admin"),
            "no Service leads to ",
        ),
        (
            "a Service of nobody",
            "Service",
            "/spec/selector",
            json!({"app": "another"}),
            "\"Service\" \"tidegate\" does not",
        ),
        (
            "peers at another name",
            "StatefulSet",
            "/spec/serviceName",
            json!("tidegate"),
            "peers do not find a node",
        ),
        ("a budget for nobody", "PodDisruptionBudget", labels, json!({}), "Budget\" \"tidegate\" does not"),
        ("no budget", "PodDisruptionBudget", "/kind", Value::Null, "there is no PodDisruptionBudget"),
        ("a scrape of nobody", "PodMonitor", labels, json!({}), "\"PodMonitor\" \"tidegate\" does not"),
    ]
}

/// Faults of the number of nodes.
fn of_scaling() -> Vec<Plant> {
    vec![
        ("no autoscaler", SCALER, "/kind", Value::Null, "nodes of a cluster are scaled, and no others"),
        ("a number against the autoscaler's", PODS, "/spec/replicas", json!(3), "3 replicas: of a cluster"),
        ("more pods than ids", SCALER, "/spec/maxReplicas", json!(30), "24 ids (node.ids) for up to 30"),
        (
            "scaling by something else",
            SCALER,
            "/spec/metrics/0/pods/metric/name",
            json!("cpu"),
            "autoscaler goes by",
        ),
        (
            "scaling too late",
            SCALER,
            "/spec/metrics/0/pods/target/averageValue",
            json!("6000"),
            "with 6000 connections each",
        ),
        ("scaling of nothing", SCALER, "/spec/scaleTargetRef/name", json!("gate"), "the autoscaler scales {"),
    ]
}

/// Faults of tidegate.toml, each a change of this text.
fn of_settings(text: &str) -> Vec<Plant> {
    let of = |what: &'static str, text: String, expected: &'static str| -> Plant {
        (what, CONFIG, "/data/tidegate.toml", json!(text), expected)
    };
    let changed = |from: &str, to: &str| text.replace(from, to);
    vec![
        of("an unknown setting", format!("{text}\n[node2]\nname = \"n1\"\n"), "node2.name is no setting"),
        of("another grace of the node", changed("grace_ms = ", "grace_ms = 1"), "drain.grace_ms is 1"),
        of("no token key", changed("key_file = \"/keys/token.key\"", ""), "the nodes share no token key"),
        of(
            "a key that nobody makes",
            changed("/keys/token.key", "/keys/another.key"),
            "auth.key_file is /keys/another.key: k8s/README.md makes no such file in /keys",
        ),
        of(
            "ids on lease for named nodes",
            changed("[node]\n", "[node]\nids = 3\n"),
            "nodes with names of their own lease none",
        ),
    ]
}

/// Faults of tidegate.toml that leave a connection of a node for production unencrypted, or without proof.
fn of_encryption(text: &str) -> Vec<Plant> {
    let of = |what: &'static str, from: &str, to: &str, expected: &'static str| -> Plant {
        (what, CONFIG, "/data/tidegate.toml", json!(text.replace(from, to)), expected)
    };
    vec![
        of(
            "plaintext Kafka",
            "security = \"sasl_ssl\"",
            "security = \"plaintext\"",
            "kafka.security: a node",
        ),
        of("plaintext Redis", "[redis]", "[redis]\ntls = false\n[redis_was]", "redis.tls: a node"),
        of("Redis without a password", "/keys/redis.password", "", "redis.password_file: a node"),
        of("plaintext Postgres", "[postgres]", "[postgres]\ntls = false\n[postgres_was]", "postgres.tls: a"),
        of("a plaintext link", "tls_ca = \"/keys/ca.crt\"", "tls_ca = \"\"", "link.tls_ca: a node"),
    ]
}

/// Faults of the connections that the NetworkPolicy allows into a node.
fn of_ways_in() -> Vec<Plant> {
    let link = "lets others than it should in at link";
    let no_port = "in, which is not a port of a node";
    vec![
        ("peers from anywhere", NET, "/spec/ingress/1/from", Value::Null, link),
        ("peers of any namespace", NET, "/spec/ingress/1/from/0/namespaceSelector", json!({}), link),
        (
            "peers of another kind",
            NET,
            "/spec/ingress/1/from/0/podSelector",
            json!({"matchLabels": {"a": "b"}}),
            link,
        ),
        (
            "figures for everybody",
            NET,
            "/spec/ingress/2/from",
            json!([]),
            "lets others than it should in at monitor",
        ),
        (ADMIN_FOR_ALL, NET, "/spec/ingress/3/from", json!([]), "lets others than it should in at admin"),
        ("every port open", NET, "/spec/ingress/0/ports", Value::Null, "lets every port in"),
        ("another port open", NET, "/spec/ingress/0/ports/0/port", json!("debug"), no_port),
        ("a range of ports open", NET, "/spec/ingress/0/ports/0/endPort", json!(65535), no_port),
        (
            "no way in for clients",
            NET,
            "/spec/ingress/0/ports/0/port",
            json!("monitor"),
            "\"link\", \"monitor\"} in",
        ),
    ]
}

/// Faults of the connections that the NetworkPolicy allows out of a node.
fn of_ways_out() -> Vec<Plant> {
    let many = ", which is not one port";
    vec![
        ("the way out not kept", NET, "/spec/policyTypes", json!(["Ingress"]), "does not keep in and out"),
        ("everything let out", NET, "/spec/egress/1/ports", Value::Null, "lets every port out"),
        ("every TCP port let out", NET, "/spec/egress/1/ports/1/port", Value::Null, many),
        ("a range let out", NET, "/spec/egress/1/ports/1/endPort", json!(65535), many),
        (
            "peers that can't be called",
            NET,
            "/spec/egress/0/ports/0/port",
            json!(7803),
            "keeps a node from (port, udp) [(7802, false)]",
        ),
        (
            "strangers called as peers",
            NET,
            "/spec/egress/0/to",
            Value::Null,
            "lets a node call others than nodes",
        ),
        (
            "no names",
            NET,
            "/spec/egress/1/ports/0/protocol",
            json!("TCP"),
            "keeps a node from (port, udp) [(53, true)]",
        ),
        (
            "no Kafka",
            NET,
            "/spec/egress/2/ports/0/port",
            json!(9093),
            "keeps a node from (port, udp) [(9092, false)]",
        ),
        (
            "a port of nothing let out",
            NET,
            "/spec/egress/2/ports/0/port",
            json!(9093),
            "[(9093, false)], where nothing is",
        ),
        (NO_PROVIDER, NET, "/spec/egress/3/ports/0/port", json!(444), "keeps a node from (port, udp) [(443,"),
        (NO_HOOKS, NET, "/spec/egress/3/ports/1/port", json!(444), "keeps a node from (port, udp) [(8443,"),
        (
            "sentinels without their master",
            NET,
            "/spec/egress/2/ports/1/port",
            json!(26379),
            "and to no master",
        ),
    ]
}

/// Plants every fault that fits the manifests.
///
/// # Errors
/// A fault whose check does not report it.
pub(super) fn all_found(documents: &[Value], facts: &ManifestFacts) -> anyhow::Result<Vec<&'static str>> {
    let pods = workload(documents).and_then(|it| it["kind"].as_str()).unwrap_or_default();
    let settings = Settings::of(documents)?;
    let is = |key: &str, value: &str| settings.value(key).as_deref() == Some(value);
    let (is_cluster, has_sentinels) = (is("node.profile", "cluster"), is("redis.mode", "sentinel"));
    let ports = workload(documents).map(|it| &it["spec"]["template"]["spec"]["containers"][0]["ports"]);
    let mut ports = ports.and_then(Value::as_array).into_iter().flatten();
    let has_admin = ports.any(|port| port["name"] == "admin");
    let fits = |what: &str| match what {
        ADMIN_FOR_ALL | ADMIN_ELSEWHERE | ADMIN_WITHOUT_KEYS => has_admin,
        NO_PROVIDER | NO_HOOKS => settings.value("auth.jwks_url").is_some(),
        // Only a Deployment leases ids.
        "more pods than ids" => pods == "Deployment",
        "ids on lease for named nodes" => pods == "StatefulSet",
        "a preStop too short for a balancer" => {
            documents.iter().any(|it| it["spec"]["externalTrafficPolicy"] == "Local")
        }
        "plaintext Kafka"
        | "plaintext Redis"
        | "Redis without a password"
        | "plaintext Postgres"
        | "a plaintext link" => facts.is_production,
        "sentinels without their master" => has_sentinels,
        "a port of nothing let out" => is_cluster && !has_sentinels,
        // Only nodes of a cluster call others, share a key and have topics.
        "peers that can't be called"
        | "peers at a name"
        | "no Kafka"
        | "no token key"
        | "a key that nobody makes"
        | "no topics"
        | "no topic for a pod" => is_cluster,
        _ => true,
    };
    let mut tried = Vec::new();
    for (what, kind, path, value, expected) in plants(&settings.text) {
        let kind = if kind == PODS { pods } else { kind };
        let mut planted = documents.to_vec();
        let object = planted.iter_mut().find(|it| it["kind"] == kind);
        let Some(object) = object.filter(|_| fits(what)) else { continue };
        set(object, &whole(path), value.clone()).with_context(|| format!("{what} can't be planted"))?;
        let problems = agree::problems(&planted, facts);
        if !problems.iter().any(|problem| problem.contains(expected)) {
            bail!(
                "no check reports {expected:?} for {what}: {kind} {path} = {value}; reported: {problems:?}"
            );
        }
        tried.push(what);
    }
    Ok(tried)
}

/// The whole path, where `pod` stands for the pod and `node` for its first container.
fn whole(path: &str) -> String {
    let spec = path.replacen("node/", "pod/containers/0/", 1);
    spec.replacen("pod/", "/spec/template/spec/", 1)
}

/// Puts the value at the end of the path; none if its parent is not there.
fn set(object: &mut Value, path: &str, value: Value) -> Option<()> {
    let (parent, key) = path.rsplit_once('/')?;
    match (object.pointer_mut(parent)?, key.parse::<usize>()) {
        (Value::Array(list), Ok(at)) => *list.get_mut(at)? = value,
        (Value::Object(map), _) => _ = map.insert(key.to_owned(), value),
        _ => return None,
    }
    Some(())
}
