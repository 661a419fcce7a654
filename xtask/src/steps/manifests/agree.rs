//! Checks beyond the schemas: names, ports, files and times must agree within the manifests and with the binary.

use serde_json::Value;

use super::{ManifestFacts, network::Pods, render::Settings, workload};

/// Kinds of objects that every folder has.
const KINDS: &[&str] = &["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"];

/// The problems that were found, each as a sentence.
struct Found(Vec<String>);

impl Found {
    fn need(&mut self, ok: bool, problem: impl FnOnce() -> String) {
        if !ok {
            self.0.push(problem());
        }
    }
}

/// All that is wrong.
pub(super) fn problems(documents: &[Value], facts: &ManifestFacts) -> Vec<String> {
    let mut found = Found(Vec::new());
    for kind in KINDS {
        found.need(documents.iter().any(|it| it["kind"] == *kind), || format!("there is no {kind}"));
    }
    let (Some(set), Ok(settings)) = (workload(documents), Settings::of(documents)) else {
        found.0.push("there is no StatefulSet or Deployment, or no tidegate.toml".into());
        return found.0;
    };
    let look = Look { documents, set, spec: &set["spec"]["template"]["spec"], settings: &settings, facts };
    let scaled = look.of_kind("HorizontalPodAutoscaler").next().is_some();
    found.need(scaled == look.is_cluster(), || "nodes of a cluster are scaled, and no others".into());
    look.names(&mut found);
    look.topics(&mut found);
    look.ports(&mut found);
    look.admin(&mut found);
    look.services(&mut found);
    look.selectors(&mut found);
    look.probes(&mut found);
    look.times(&mut found);
    look.files(&mut found);
    look.encryption(&mut found);
    look.security(&mut found);
    found.0
}

struct Look<'a> {
    documents: &'a [Value],
    set: &'a Value,
    spec: &'a Value,
    settings: &'a Settings,
    facts: &'a ManifestFacts,
}

impl<'a> Look<'a> {
    fn node(&self) -> &'a Value {
        &self.spec["containers"][0]
    }

    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let lists = [&self.spec["containers"], &self.spec["initContainers"]];
        lists.into_iter().filter_map(Value::as_array).flatten()
    }

    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &'a Value> {
        self.documents.iter().filter(move |it| it["kind"] == kind)
    }

    /// The number of a named port of the node.
    fn port(&self, name: &Value) -> Option<u64> {
        let mut ports = self.node()["ports"].as_array().into_iter().flatten();
        ports.find(|port| port["name"] == *name)?["containerPort"].as_u64()
    }

    fn is_cluster(&self) -> bool {
        self.settings.value("node.profile").as_deref() == Some("cluster")
    }

    fn number(&self, key: &str) -> u64 {
        self.settings.value(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Checks that the binary knows all settings and variables.
    fn names(&self, found: &mut Found) {
        for key in self.settings.keys() {
            found.need(self.facts.keys.contains(&key), || format!("tidegate.toml: {key} is no setting"));
        }
        for container in self.containers() {
            for entry in container["env"].as_array().into_iter().flatten() {
                let name = entry["name"].as_str().unwrap_or_default();
                let mut others = container["env"].as_array().into_iter().flatten();
                let helps = others
                    .any(|it| it["value"].as_str().is_some_and(|it| it.contains(&format!("$({name})"))));
                found.need(self.facts.names.contains(name) || helps, || {
                    format!("{}: {name} is no variable that the binary reads", container["name"])
                });
            }
        }
        self.ids(found);
        let replicas = &self.set["spec"]["replicas"];
        found.need(if self.is_cluster() { replicas.is_null() } else { replicas == 1 }, || {
            format!("{replicas} replicas: of a cluster that is the autoscaler's to say, and without one there is one node")
        });
    }

    /// Checks that each node has its own id: that of its pod if it is stable, else a leased one, of more ids than pods.
    fn ids(&self, found: &mut Found) {
        let id = &self.variable("TIDEGATE__NODE__ID")["valueFrom"]["fieldRef"]["fieldPath"];
        if !self.is_deployment() {
            found.need(id == "metadata.name", || "a node's id is not the name of its pod".into());
            found.need(self.number("node.ids") == 0, || "nodes with names of their own lease none".into());
            return;
        }
        found.need(id.is_null(), || "the pods of a Deployment have names that nobody has again".into());
        let grace = &self.spec["terminationGracePeriodSeconds"];
        found.need(self.set["spec"]["minReadySeconds"].as_u64() >= grace.as_u64(), || {
            format!("minReadySeconds is below {grace}: a rollout has the next node leave before the last one is gone")
        });
        let surge = self.set["spec"]["strategy"]["rollingUpdate"]["maxSurge"].as_u64().unwrap_or(0);
        for scaler in self.of_kind("HorizontalPodAutoscaler") {
            let (pods, ids) = (scaler["spec"]["maxReplicas"].as_u64().unwrap_or(0), self.number("node.ids"));
            // All pods may just have died, and hold their ids until their leases expire.
            found.need(ids >= 2 * pods && surge == 1 && ids > pods + surge, || {
                format!("{ids} ids (node.ids) for up to {pods} pods and {surge} more in a rollout")
            });
        }
    }

    /// Checks that an init container creates the topics, of all leasable ids or of the pod's own, as nodes create none.
    fn topics(&self, found: &mut Found) {
        let ensure = ["topics", "ensure", "--node", "$(TIDEGATE__NODE__ID)"];
        let ensure = if self.is_deployment() { &ensure[..2] } else { &ensure[..] };
        let mut before = self.spec["initContainers"].as_array().into_iter().flatten();
        let made = before.any(|container| container["args"] == serde_json::json!(ensure));
        found.need(made || !self.is_cluster(), || format!("no init container runs {ensure:?}"));
    }

    fn is_deployment(&self) -> bool {
        self.set["kind"] == "Deployment"
    }

    fn variable(&self, name: &str) -> &'a Value {
        let mut entries = self.node()["env"].as_array().into_iter().flatten();
        entries.find(|entry| entry["name"] == name).unwrap_or(&Value::Null)
    }

    /// Checks that the ports of the pod are those that the settings listen on.
    fn ports(&self, found: &mut Found) {
        let listened = [("client", "listen.client"), ("link", "link.listen"), ("monitor", "listen.monitor")];
        for (name, key) in listened {
            let default = if key == "link.listen" { "127.0.0.1:7802" } else { "" };
            let address = self.settings.value(key).unwrap_or_else(|| default.to_owned());
            let listens = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u64>().ok());
            let port = self.port(&Value::from(name));
            found.need(port.is_some() && port == listens, || {
                format!("the port {name} of the pod is {port:?}, {key} is {address:?}")
            });
        }
        let advertised = self.variable("TIDEGATE__LINK__ADVERTISE")["value"].as_str().unwrap_or_default();
        let right = format!("$(POD_IP):{}", self.port(&Value::from("link")).unwrap_or(0));
        found.need(advertised == right || !self.is_cluster(), || {
            format!("TIDEGATE__LINK__ADVERTISE is {advertised}, peers find it at {right}")
        });
    }

    /// Checks that an admin port of the pod is the one that the node listens on, and that it has keys.
    fn admin(&self, found: &mut Found) {
        let value = |name: &str| self.variable(name)["value"].as_str().unwrap_or_default();
        let address = value("TIDEGATE__LISTEN__ADMIN");
        let listens = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u64>().ok());
        let port = self.port(&Value::from("admin"));
        found.need(port == listens, || {
            format!("the port admin of the pod is {port:?}, TIDEGATE__LISTEN__ADMIN is {address:?}")
        });
        let file = value("TIDEGATE__ADMIN__KEYS_FILE");
        let made = file.strip_prefix("/keys/").map(|file| format!("--from-file={file}"));
        let made = made.is_some_and(|made| self.facts.page.contains(&made));
        found.need(port.is_none() || made, || {
            format!("admin.keys_file is {file:?}: k8s/README.md makes no such file in /keys")
        });
    }

    fn services(&self, found: &mut Found) {
        let headless = &self.set["spec"]["serviceName"];
        let mut offered = Vec::new();
        for service in self.of_kind("Service") {
            let name = &service["metadata"]["name"];
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                let target = self.port(&port["targetPort"]);
                found.need(target.is_some() && target == port["port"].as_u64(), || {
                    format!("the Service {name} leads from {} to {target:?}", port["port"])
                });
                offered.push((name == headless, port["targetPort"].as_str().unwrap_or_default()));
            }
            if name == headless {
                let spec = &service["spec"];
                found.need(spec["clusterIP"] == "None" && spec["publishNotReadyAddresses"] == true, || {
                    "peers do not find a node that starts or leaves: the Service between them has to be headless \
                     and name those that are not ready"
                        .into()
                });
            }
        }
        let mut wanted = vec![(false, "client"), (true, "link"), (false, "monitor")];
        // Peers use that Service only where each pod has a name.
        wanted.retain(|(between, _)| !(*between && self.is_deployment()));
        for wanted in wanted {
            found.need(offered.contains(&wanted), || format!("no Service leads to {}", wanted.1));
        }
    }

    /// Checks that all selectors select these pods, and all references to the workload name it.
    fn selectors(&self, found: &mut Found) {
        let labels = &self.set["spec"]["template"]["metadata"]["labels"];
        let spread = self.spec["topologySpreadConstraints"].as_array().into_iter().flatten();
        let selectors = (self.of_kind("Service").map(|it| (it, &it["spec"]["selector"])))
            .chain(self.of_kind("PodDisruptionBudget").map(|it| (it, &it["spec"]["selector"]["matchLabels"])))
            .chain(self.of_kind("NetworkPolicy").map(|it| (it, &it["spec"]["podSelector"]["matchLabels"])))
            .chain(self.of_kind("PodMonitor").map(|it| (it, &it["spec"]["selector"]["matchLabels"])))
            .chain(std::iter::once((self.set, &self.set["spec"]["selector"]["matchLabels"])))
            .chain(spread.clone().map(|it| (self.set, &it["labelSelector"]["matchLabels"])));
        for (of, selector) in selectors {
            let wanted = selector.as_object().filter(|wanted| !wanted.is_empty());
            let all = wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value));
            found.need(all, || format!("{} {} does not select the pods", of["kind"], of["metadata"]["name"]));
        }
        let keys: Vec<_> = spread.map(|it| it["topologyKey"].as_str().unwrap_or_default()).collect();
        found.need(keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"], || {
            format!("pods are spread over {keys:?}, not over zones and machines")
        });
        let port = |name: &Value| self.port(name);
        let pods = Pods { labels, port: &port, settings: self.settings, is_cluster: self.is_cluster() };
        self.of_kind("NetworkPolicy").for_each(|policy| found.0.extend(pods.problems(policy)));
        for scaler in self.of_kind("HorizontalPodAutoscaler") {
            let target = &scaler["spec"]["scaleTargetRef"];
            let right = ["apiVersion", "kind"].iter().all(|key| target[key] == self.set[key]);
            found.need(right && target["name"] == self.set["metadata"]["name"], || {
                format!("the autoscaler scales {target}")
            });
        }
    }

    fn probes(&self, found: &mut Found) {
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let get = &self.node()[probe]["httpGet"];
            found.need(get["port"] == "monitor", || format!("{probe} asks the port {}", get["port"]));
            let path = get["path"].as_str().unwrap_or_default();
            found.need(self.facts.paths.contains(path), || {
                format!("{probe} asks for {path:?}, which listen.monitor does not have")
            });
            found.need((path == "/readyz") == (probe == "readinessProbe"), || {
                format!("{probe} asks for {path}: /readyz is 503 in a drain and while Redis is away at the start, which must not end the pod")
            });
        }
    }

    /// Checks that times fit: probes, drain, grace period, and the load in a rollout.
    fn times(&self, found: &mut Found) {
        let whole = |value: &Value| value.as_u64().unwrap_or(0);
        let readiness = &self.node()["readinessProbe"];
        let seen = (whole(&readiness["periodSeconds"]) * whole(&readiness["failureThreshold"])) * 1_000;
        let delay = self.number("drain.lb_delay_ms");
        found.need(seen > 0 && seen < delay, || {
            format!("readinessProbe takes {seen} ms to see a drain, drain.lb_delay_ms is {delay}")
        });
        let before = whole(&self.node()["lifecycle"]["preStop"]["sleep"]["seconds"]);
        let (given, needed) = (whole(&self.spec["terminationGracePeriodSeconds"]), before + self.facts.grace);
        found.need(given >= needed, || {
            format!(
                "terminationGracePeriodSeconds is {given}; preStop ({before} s) and what drain-plan prints ({} s) need {needed}",
                self.facts.grace
            )
        });
        let set = self.number("drain.grace_ms");
        found.need(set == given.saturating_sub(before) * 1_000, || {
            format!("drain.grace_ms is {set}; of {given} s the node has what preStop ({before} s) leaves")
        });
        let is_local = |service: &Value| service["spec"]["externalTrafficPolicy"] == "Local";
        // Three health checks of a load balancer, 10 s apart, as clouds use.
        found.need(before >= 30 || !self.of_kind("Service").any(is_local), || {
            format!("preStop is {before} s: a balancer goes on sending to a machine whose pod takes nobody any more")
        });
        let full = self.number("limits.conns_max");
        for scaler in self.of_kind("HorizontalPodAutoscaler") {
            let metric = &scaler["spec"]["metrics"][0]["pods"];
            found.need(metric["metric"]["name"] == "tidegate_connections", || {
                format!("the autoscaler goes by {}, not by connections", metric["metric"]["name"])
            });
            let each = metric["target"]["averageValue"].as_str().and_then(|text| text.parse::<u64>().ok());
            let (each, least) = (each.unwrap_or(0), whole(&scaler["spec"]["minReplicas"]));
            let most = i32::try_from(whole(&scaler["spec"]["maxReplicas"])).unwrap_or(i32::MAX);
            // Each leaving node fills the others by this factor and returns empty, so the last one carries the sum.
            let fuller = f64::from(most) / f64::from((most - 1).max(1));
            let last = each as f64 * fuller.powi(most - 1);
            found.need(least > 1 && each > 0 && last <= full as f64, || {
                format!("{most} nodes with {each} connections each: the last to restart has {last:.0}, over {full}")
            });
        }
    }

    /// Checks that files in the settings are mounted, and that k8s/README.md says how to create them.
    fn files(&self, found: &mut Found) {
        let keys = self.settings.keys();
        let is_file = |key: &&String| {
            key.ends_with("_file") || ["link.tls_cert", "link.tls_key", "link.tls_ca"].contains(&key.as_str())
        };
        let named = keys.iter().filter(is_file);
        let mut mounts = self.node()["volumeMounts"].as_array().into_iter().flatten();
        let mount = mounts.find(|mount| mount["name"] == "keys");
        let folder = mount.and_then(|mount| mount["mountPath"].as_str()).unwrap_or_default();
        let shared = keys.iter().any(|key| key == "auth.key_file");
        found.need(shared || !self.is_cluster(), || "the nodes share no token key".into());
        for key in named {
            let path = self.settings.value(key).unwrap_or_default();
            let file = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            let made = file.is_some_and(|file| self.facts.page.contains(&format!("--from-file={file}")));
            found.need(made, || format!("{key} is {path}: k8s/README.md makes no such file in {folder}"));
        }
        for container in self.containers() {
            let config = container["env"].as_array().into_iter().flatten();
            let config =
                config.filter(|entry| entry["name"] == "TIDEGATE_CONFIG").map(|entry| &entry["value"]);
            let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
            let folder =
                mounts.find(|mount| mount["name"] == "config").and_then(|it| it["mountPath"].as_str());
            let right = format!("{}/tidegate.toml", folder.unwrap_or_default());
            found.need(config.eq([&Value::from(right.as_str())]), || {
                format!("{}: the settings are at {right}, TIDEGATE_CONFIG says else", container["name"])
            });
        }
    }

    /// Checks that a node for production encrypts every connection to servers and peers, and authenticates itself.
    fn encryption(&self, found: &mut Found) {
        let is = |key: &str, wanted: &str| self.settings.value(key).as_deref() == Some(wanted);
        let given = |key: &str| self.settings.value(key).is_some_and(|value| !value.is_empty());
        let needed = [
            ("kafka.security", is("kafka.security", "sasl_ssl") || is("kafka.security", "ssl")),
            ("redis.tls", is("redis.tls", "true")),
            ("redis.password_file", given("redis.password_file")),
            ("postgres.tls", is("postgres.tls", "true")),
            ("postgres.password_file", given("postgres.password_file")),
            ("link.tls_ca", given("link.tls_ca")),
            ("link.secret_file", given("link.secret_file")),
        ];
        for (key, ok) in needed {
            found.need(ok || !self.facts.is_production, || {
                format!("{key}: a node for production connects without encryption or proof")
            });
        }
    }

    fn security(&self, found: &mut Found) {
        let pod = &self.spec["securityContext"];
        let user = format!("{}:{}", pod["runAsUser"], pod["runAsGroup"]);
        found.need(pod["runAsNonRoot"] == true && user == self.facts.user, || {
            format!("the pod runs as {user}, the image as {}", self.facts.user)
        });
        found
            .need(pod["fsGroup"] == pod["runAsGroup"], || "the node could not read its keys: fsGroup".into());
        found.need(pod["seccompProfile"]["type"] == "RuntimeDefault", || "no seccomp profile".into());
        for container in self.containers() {
            let own = &container["securityContext"];
            let closed = own["readOnlyRootFilesystem"] == true
                && own["allowPrivilegeEscalation"] == false
                && own["capabilities"]["drop"][0] == "ALL";
            found.need(closed, || format!("{} may do more than it needs", container["name"]));
            found.need(!container["resources"]["limits"]["memory"].is_null(), || {
                format!("{} has no memory limit", container["name"])
            });
        }
        let tokens = self.of_kind("ServiceAccount").chain([self.spec]);
        for of in tokens {
            found.need(of["automountServiceAccountToken"] == false, || {
                "a pod gets a token of Kubernetes".into()
            });
        }
        let used = &self.spec["serviceAccountName"];
        found.need(self.of_kind("ServiceAccount").any(|it| it["metadata"]["name"] == *used), || {
            format!("there is no ServiceAccount {used}")
        });
    }
}
