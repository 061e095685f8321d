//! What helm makes of a chart, as documents, and the values that it is tried with.

use anyhow::{Context, Result, ensure};
use runnel_tests::helm::Helm;
use serde_json::Value;

/// The two charts.
pub const CHARTS: [&str; 2] = ["runnel-hub", "runnel-agent"];

/// Values that are tried, each with what it is about. Together they turn every switch.
pub const HUB: &[(&str, &str)] = &[
    ("defaults", "{}"),
    (
        "two replicas",
        "{replicas: 2, advertise: ['hub.example.com:8443', '[2001:db8::1]:443']}",
    ),
    (
        "limited sources",
        "{sourceNamespaces: [team-a, team-b], sourceGoneGrace: 1m30s}",
    ),
    (
        "times",
        "{lease: {duration: 30s, renewDeadline: 20s, retryPeriod: 4s}, certificate: {life: 12h, expiredRenewalLimit: 240h, caLife: 8760h}}",
    ),
    (
        "a load balancer",
        "{service: {type: LoadBalancer, port: 443, nodePort: 30443, loadBalancerClass: example.com/lb, \
        loadBalancerSourceRanges: [203.0.113.0/24], externalTrafficPolicy: Local, annotations: {a.example.com/b: c}}}",
    ),
    (
        "node ports",
        "{service: {type: NodePort, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}}",
    ),
    (
        "an ingress",
        "{ingress: {enabled: true, className: nginx, host: hub.example.com}}",
    ),
    (
        "an image",
        "{image: {registry: 'registry.example.com:5000', repository: platform/runnel-hub, tag: v9, digest: \
        'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', pullPolicy: Always}, \
        imagePullSecrets: [{name: pull}]}",
    ),
    (
        "scheduling",
        "{nodeSelector: {a: b}, tolerations: [{key: a, operator: Exists}], podLabels: {team: x}, podAnnotations: \
        {a.example.com/b: c}, affinity: {nodeAffinity: {}}, topologySpreadConstraints: [{topologyKey: a, maxSkew: 1, \
        whenUnsatisfiable: DoNotSchedule, labelSelector: {}}], priorityClassName: system-cluster-critical}",
    ),
    ("a priority", "{priorityClass: {create: true, value: 1000}}"),
    (
        "around it",
        "{networkPolicy: {enabled: true, agentsFrom: [{ipBlock: {cidr: 203.0.113.0/24}}], metricsFrom: \
        [{namespaceSelector: {}}]}, podDisruptionBudget: {enabled: true, maxUnavailable: 50%}}",
    ),
    (
        "without the rest",
        "{crds: {install: false}, podDisruptionBudget: {enabled: false}, rbac: {clusterRoles: {view: {create: \
        false}, edit: {create: false}, admin: {create: false}}}}",
    ),
    (
        "editors",
        "{rbac: {clusterRoles: {view: {aggregate: false}, edit: {aggregate: true}}}}",
    ),
    (
        "another account",
        "{serviceAccount: {create: false, name: given}}",
    ),
    (
        "names",
        "{fullnameOverride: distribution, serviceAccount: {name: other, annotations: {a.example.com/b: c}}}",
    ),
    (
        "more",
        "{extraArgs: ['--kubeconfig=/etc/kubeconfig'], extraEnv: [{name: A, value: b}], log: {level: 'info,runnel_hub=debug'}, \
        listenAddress: '[::]', ports: {grpc: 9443, replica: 9444, ops: 9081}, resources: {limits: {memory: 2Gi}}}",
    ),
];

/// Values of the hub that need kinds which not every cluster has.
pub const HUB_WITH_OTHERS: &[(&str, &str)] = &[
    (
        "a TLS route",
        "{tlsRoute: {enabled: true, hostnames: [hub.example.com], parentRefs: [{name: edge, namespace: gateways}]}}",
    ),
    (
        "metrics",
        "{metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}, relabelings: [{action: labeldrop, \
        regex: pod}]}, prometheusRule: {enabled: true, labels: {release: prometheus}}, dashboard: {enabled: true, annotations: \
        {folder: Runnel}}}}",
    ),
];

/// The same for the agent.
pub const AGENT: &[(&str, &str)] = &[
    ("defaults", "{}"),
    ("two replicas", "{replicas: 2}"),
    (
        "a join string",
        "{join: {string: runnel-join-v1.not-a-real-one}}",
    ),
    ("a Secret", "{join: {existingSecret: from-git}}"),
    ("two namespaces", "{policy: {namespaces: [team-a, team-b]}}"),
    (
        "two namespaces without Roles",
        "{policy: {namespaces: [team-a, team-b], createRoles: false}}",
    ),
    (
        "a glob",
        "{policy: {namespaces: [default, 'team-*'], deniedNamespaces: ['team-x*'], createNamespaces: true}}",
    ),
    (
        "secrets only",
        "{policy: {kinds: [secrets], secretTypes: {allowed: ['kubernetes.io/*', Opaque], denied: \
        [kubernetes.io/basic-auth]}, maxObjectBytes: 65536, overwrite: true, onRevoke: Purge}}",
    ),
    (
        "a proxy",
        "{proxy: {httpsProxy: 'http://proxy.example.com:3128', noProxy: [10.0.0.0/8, .example.com]}}",
    ),
    (
        "around it",
        "{networkPolicy: {enabled: true, hubAt: [{ipBlock: {cidr: 203.0.113.0/24}}], hubPorts: [30443]}, \
        podDisruptionBudget: {enabled: true}, priorityClass: {create: true}, priorityClassName: runnel}",
    ),
    (
        "more",
        "{fullnameOverride: distribution, serviceAccount: {create: false, name: given}, extraArgs: ['--kubeconfig=/etc/kubeconfig'], \
        extraEnv: [{name: A, value: b}], ports: {ops: 9082}, nodeSelector: {a: b}, image: {tag: v9}}",
    ),
];

/// Values of the agent that need kinds which not every cluster has.
pub const AGENT_WITH_OTHERS: &[(&str, &str)] = &[(
    "metrics",
    "{metrics: {serviceMonitor: {enabled: true, interval: 1m}}}",
)];

/// All values that a chart is tried with.
pub fn tried(chart: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let (own, others) = if chart == "runnel-hub" {
        (HUB, HUB_WITH_OTHERS)
    } else {
        (AGENT, AGENT_WITH_OTHERS)
    };
    own.iter().chain(others)
}

/// The documents that helm makes of a chart with these values (YAML), as it installs it.
pub async fn documents(helm: &Helm, chart: &str, values: &str) -> Result<Vec<Value>> {
    let text = helm.template(chart, values).await?;
    let read: Vec<Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("{chart} with {values}:\n{text}"))?;
    ensure!(
        !read.is_empty(),
        "{chart} with {values}: nothing is rendered"
    );
    Ok(read
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// The only document of a kind, with a name where there are several.
pub fn one<'a>(documents: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    let found = documents
        .iter()
        .find(|document| document["kind"] == kind && document["metadata"]["name"] == name);
    found.with_context(|| format!("there is no {kind} {name}"))
}

/// The texts of a list.
pub fn texts(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// The container of the Deployment.
pub fn container(documents: &[Value]) -> Result<&Value> {
    let deployment = documents
        .iter()
        .find(|document| document["kind"] == "Deployment")
        .context("no Deployment")?;
    Ok(&deployment["spec"]["template"]["spec"]["containers"][0])
}
