//! Faults that are planted into rendered manifests, each of which the checks have to find.

use anyhow::bail;
use serde_json::{Value, json};

use super::{Facts, agree, render::Settings, workload};

/// In place of a kind: whatever has the pods.
const PODS: &str = "pods";

const NET: &str = "NetworkPolicy";
const POD: &str = "/spec/template/spec";
const NODE: &str = "/spec/template/spec/containers/0";

/// (what is wrong, the kind of object, where in it, what is there then; null takes it away)
fn plants() -> Vec<(&'static str, &'static str, String, Value)> {
    let pod = |path: &str| format!("{POD}{path}");
    let node = |path: &str| format!("{NODE}{path}");
    let own = |path: &str| path.to_owned();
    vec![
        ("a grace too short", PODS, pod("/terminationGracePeriodSeconds"), json!(50)),
        ("a balancer that was not told", PODS, node("/lifecycle/preStop/sleep/seconds"), json!(29)),
        ("a preStop too long", PODS, node("/lifecycle/preStop/sleep/seconds"), json!(45)),
        ("another client port", PODS, node("/ports/0/containerPort"), json!(7801)),
        ("another port of the Service", "Service", own("/spec/ports/0/port"), json!(80)),
        ("a Service of nobody", "Service", own("/spec/selector"), json!({"app": "another"})),
        ("a wrong probe path", PODS, node("/readinessProbe/httpGet/path"), json!("/ready")),
        ("a drain that ends the pod", PODS, node("/livenessProbe/httpGet/path"), json!("/readyz")),
        ("probes on the client port", PODS, node("/livenessProbe/httpGet/port"), json!("client")),
        ("readiness too slow for a drain", PODS, node("/readinessProbe/failureThreshold"), json!(3)),
        ("an unknown variable", PODS, node("/env/1/name"), json!("TIDEGATE__NODE__NAME")),
        ("peers at another name", "StatefulSet", own("/spec/serviceName"), json!("tidegate")),
        ("peers at another address", "Deployment", node("/env/2/value"), json!("0.0.0.0:7802")),
        (
            "peers at a name",
            "StatefulSet",
            node("/env/3/value"),
            json!("$(TIDEGATE__NODE__ID).tidegate-nodes:7802"),
        ),
        (
            "a name that changes",
            "Deployment",
            node("/env/1"),
            json!({"name": "TIDEGATE__NODE__ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        ),
        ("a rollout that does not wait", "Deployment", own("/spec/minReadySeconds"), json!(5)),
        ("more pods than ids", "HorizontalPodAutoscaler", own("/spec/maxReplicas"), json!(30)),
        ("another user than the image's", PODS, pod("/securityContext/runAsUser"), json!(10002)),
        ("keys that can't be read", PODS, pod("/securityContext/fsGroup"), Value::Null),
        ("a root that can be written", PODS, node("/securityContext/readOnlyRootFilesystem"), json!(false)),
        ("a token for the pod", "ServiceAccount", own("/automountServiceAccountToken"), json!(true)),
        ("a number against the autoscaler's", PODS, own("/spec/replicas"), json!(3)),
        (
            "scaling by something else",
            "HorizontalPodAutoscaler",
            own("/spec/metrics/0/pods/metric/name"),
            json!("cpu"),
        ),
        (
            "scaling too late",
            "HorizontalPodAutoscaler",
            own("/spec/metrics/0/pods/target/averageValue"),
            json!("6000"),
        ),
        ("scaling of nothing", "HorizontalPodAutoscaler", own("/spec/scaleTargetRef/name"), json!("gate")),
        ("a budget for nobody", "PodDisruptionBudget", own("/spec/selector/matchLabels"), json!({})),
        ("no spreading", PODS, pod("/topologySpreadConstraints"), Value::Null),
        ("no topics", PODS, pod("/initContainers/0/args"), json!(["topics"])),
        ("no topic for a pod", "StatefulSet", pod("/initContainers/0/args"), json!(["topics", "ensure"])),
        ("an unknown setting", "ConfigMap", own("/data/tidegate.toml"), json!("[node]\nname = \"n1\"\n")),
    ]
}

/// The same, of who may call whom.
fn of_network() -> Vec<(&'static str, &'static str, String, Value)> {
    let own = |path: &str| path.to_owned();
    vec![
        ("peers from anywhere", NET, own("/spec/ingress/1/from"), Value::Null),
        ("peers of any namespace", NET, own("/spec/ingress/1/from/0/namespaceSelector"), json!({})),
        (
            "peers of another kind",
            NET,
            own("/spec/ingress/1/from/0/podSelector"),
            json!({"matchLabels": {"a": "b"}}),
        ),
        ("figures for everybody", NET, own("/spec/ingress/2/from"), json!([])),
        ("every port open", NET, own("/spec/ingress/0/ports"), Value::Null),
        ("no way in for clients", NET, own("/spec/ingress/0/ports/0/port"), json!("monitor")),
        ("the way out not kept", NET, own("/spec/policyTypes"), json!(["Ingress"])),
        ("everything let out", NET, own("/spec/egress/1/ports"), Value::Null),
        ("peers that can't be called", NET, own("/spec/egress/0/ports/0/port"), json!(7803)),
        ("strangers called as peers", NET, own("/spec/egress/0/to"), Value::Null),
        ("no names", NET, own("/spec/egress/1/ports/0/protocol"), json!("TCP")),
        ("no Kafka", NET, own("/spec/egress/2/ports/0/port"), json!(9093)),
    ]
}

/// How many there were; fails on one that nobody found.
pub(super) fn all_found(documents: &[Value], facts: &Facts) -> anyhow::Result<usize> {
    let pods = workload(documents).and_then(|it| it["kind"].as_str()).unwrap_or_default();
    let plants = plants().into_iter().chain(of_network()).map(|(what, kind, path, value)| {
        let kind = if kind == PODS { pods } else { kind };
        (what, kind, path, value)
    });
    let profile = Settings::of(documents)?.value("node.profile");
    // Only a Deployment leases ids, and only nodes of a cluster call somebody and have topics.
    let fits = |what: &str| match what {
        "more pods than ids" => pods == "Deployment",
        "peers that can't be called"
        | "peers at a name"
        | "no Kafka"
        | "no topics"
        | "no topic for a pod" => profile.as_deref() == Some("cluster"),
        _ => true,
    };
    let there = |kind: &str| documents.iter().any(|it| it["kind"] == kind);
    let plants: Vec<_> = plants.filter(|(what, kind, ..)| there(kind) && fits(what)).collect();
    for (what, kind, path, value) in &plants {
        let mut planted = documents.to_vec();
        let Some(object) = planted.iter_mut().find(|it| it["kind"] == *kind) else { continue };
        set(object, path, value.clone());
        if agree::problems(&planted, facts).is_empty() {
            bail!("the checks found nothing wrong with {what}: {kind} {path} = {value}");
        }
    }
    Ok(plants.len())
}

fn set(object: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('/').unwrap_or(("", path));
    let Some(parent) = object.pointer_mut(parent) else { return };
    match (parent, key.parse::<usize>()) {
        (Value::Array(list), Ok(at)) if at < list.len() => list[at] = value,
        (Value::Object(map), _) => _ = map.insert(key.to_owned(), value),
        _ => {}
    }
}
