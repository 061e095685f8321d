//! Invalid values: each is refused before the installation, with its field.

/// Chart, values, and the expected refusal.
pub const REFUSED: &[(&str, &str, &str)] = &[
    (
        "runnel-hub",
        "{replica: 2}",
        "additional properties 'replica'",
    ),
    ("runnel-hub", "{replicas: two}", "/replicas"),
    ("runnel-hub", "{replicas: -1}", "/replicas"),
    (
        "runnel-hub",
        "{advertise: hub.example.com:8443}",
        "/advertise",
    ),
    (
        "runnel-hub",
        "{advertise: ['https://hub.example.com:8443']}",
        "advertise: `https://hub.example.com:8443` is no address",
    ),
    (
        "runnel-hub",
        "{advertise: [hub.example.com]}",
        "write host:port",
    ),
    (
        "runnel-hub",
        "{advertise: ['hub.example.com:0']}",
        "advertise: `hub.example.com:0`",
    ),
    (
        "runnel-hub",
        "{advertise: ['hub.example.com:65536']}",
        "advertise: `hub.example.com:65536`",
    ),
    ("runnel-hub", "{advertise: ['']}", "advertise"),
    (
        "runnel-hub",
        "{sourceNamespaces: ['team-*']}",
        "/sourceNamespaces/0",
    ),
    ("runnel-hub", "{sourceGoneGrace: 5}", "/sourceGoneGrace"),
    (
        "runnel-hub",
        "{sourceGoneGrace: 5 seconds}",
        "/sourceGoneGrace",
    ),
    (
        "runnel-hub",
        "{certificate: {life: a day}}",
        "/certificate/life",
    ),
    (
        "runnel-hub",
        "{lease: {leaseDuration: 15s}}",
        "additional properties 'leaseDuration'",
    ),
    ("runnel-hub", "{sourceGoneGrace: ''}", "/sourceGoneGrace"),
    (
        "runnel-hub",
        "{sourceGoneGrace: 2d}",
        "sourceGoneGrace: 2d is not between 0s and 24h",
    ),
    (
        "runnel-hub",
        "{certificate: {life: 3s}}",
        "certificate.life: 3s is not between 4s and 720h",
    ),
    (
        "runnel-hub",
        "{certificate: {expiredRenewalLimit: 366d}}",
        "certificate.expiredRenewalLimit",
    ),
    (
        "runnel-hub",
        "{certificate: {caLife: 89d23h}}",
        "certificate.caLife",
    ),
    (
        "runnel-hub",
        "{lease: {duration: 121s}}",
        "lease.duration: 121s is not between 1s and 120s",
    ),
    (
        "runnel-hub",
        "{lease: {duration: 10s}}",
        "lease: duration (10s) must be longer than renewDeadline (10s)",
    ),
    (
        "runnel-hub",
        "{lease: {retryPeriod: 0ms}}",
        "retryPeriod (0ms), which is not 0",
    ),
    ("runnel-hub", "{listenAddress: 256.0.0.1}", "/listenAddress"),
    ("runnel-hub", "{log: {level: verbose}}", "/log/level"),
    (
        "runnel-hub",
        "{log: {level: 'info,runnel_hub'}}",
        "/log/level",
    ),
    ("runnel-agent", "{log: {level: verbose}}", "/log/level"),
    (
        "runnel-hub",
        "{image: {tag: latest}}",
        "image.tag: `latest` says nothing about what runs",
    ),
    (
        "runnel-agent",
        "{image: {tag: latest}}",
        "image.tag: `latest` says nothing about what runs",
    ),
    (
        "runnel-hub",
        "{image: {digest: 'sha256:0123'}}",
        "/image/digest",
    ),
    (
        "runnel-hub",
        "{image: {pullPolicy: never}}",
        "/image/pullPolicy",
    ),
    (
        "runnel-hub",
        "{imagePullSecrets: [pull]}",
        "/imagePullSecrets/0",
    ),
    (
        "runnel-hub",
        "{service: {type: ExternalName}}",
        "/service/type",
    ),
    ("runnel-hub", "{service: {port: 0}}", "/service/port"),
    ("runnel-hub", "{ports: {grpc: 70000}}", "/ports/grpc"),
    ("runnel-hub", "{listenAddress: localhost}", "/listenAddress"),
    ("runnel-hub", "{log: {format: xml}}", "/log/format"),
    ("runnel-hub", "{crds: {install: 'yes'}}", "/crds/install"),
    (
        "runnel-hub",
        "{podDisruptionBudget: {maxUnavailable: many}}",
        "/podDisruptionBudget/maxUnavailable",
    ),
    (
        "runnel-hub",
        "{rbac: {clusterRoles: {admin: {aggregate: true}}}}",
        "additional properties 'aggregate'",
    ),
    ("runnel-hub", "{ingress: {enabled: true}}", "ingress.host"),
    (
        "runnel-hub",
        "{tlsRoute: {enabled: true, hostnames: [a.example.com]}}",
        "tlsRoute.parentRefs",
    ),
    (
        "runnel-hub",
        "{serviceAccount: {create: false}}",
        "serviceAccount.name",
    ),
    ("runnel-agent", "{replicas: -1}", "/replicas"),
    (
        "runnel-agent",
        "{policy: {namespaces: []}}",
        "/policy/namespaces",
    ),
    (
        "runnel-agent",
        "{policy: {namespaces: '*'}}",
        "/policy/namespaces",
    ),
    (
        "runnel-agent",
        "{policy: {namespaces: [Team]}}",
        "/policy/namespaces/0",
    ),
    (
        "runnel-agent",
        "{policy: {deniedNamespaces: [a/b]}}",
        "/policy/deniedNamespaces/0",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [pods]}}",
        "policy.kinds: pods carry rights, run programs or change how the cluster works: name it in policy.allowPrivileged",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [configmaps, workloads]}}",
        "policy.kinds: cronjobs.batch carry rights, run programs or change how the cluster works: name it in policy.allowPrivileged",
    ),
    (
        "runnel-agent",
        "{policy: {clusterKinds: [policy]}}",
        "clusterKinds: policy stands for no kinds here",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [deployments.apps], allowPrivileged: [pods]}}",
        "policy.kinds: deployments.apps carry rights",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [distributionrules.runnel.dev]}}",
        "policy.kinds: distributionrules.runnel.dev are objects of Runnel itself",
    ),
    (
        "runnel-agent",
        "{policy: {clusterKinds: [namespaces]}}",
        "policy.clusterKinds: namespaces carry rights, run programs or change how the cluster works: name it in \
         policy.allowPrivileged",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [widgets.example.org], clusterKinds: [widgets.example.org]}}",
        "policy.clusterKinds: widgets.example.org is in policy.kinds, too",
    ),
    (
        "runnel-agent",
        "{policy: {clusterKinds: ['*']}}",
        "/policy/clusterKinds/0",
    ),
    (
        "runnel-hub",
        "{sources: {clusterKinds: ['*.example.org']}}",
        "/sources/clusterKinds/0",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: ['*']}}",
        "/policy/kinds/0",
    ),
    (
        "runnel-agent",
        "{policy: {kinds: [Services]}}",
        "/policy/kinds/0",
    ),
    (
        "runnel-agent",
        "{policy: {allowPrivileged: ['*.apps']}}",
        "/policy/allowPrivileged/0",
    ),
    ("runnel-agent", "{policy: {kinds: []}}", "/policy/kinds"),
    (
        "runnel-agent",
        "{policy: {secretTypes: [Opaque]}}",
        "/policy/secretTypes",
    ),
    (
        "runnel-agent",
        "{policy: {maxObjectBytes: 1Mi}}",
        "/policy/maxObjectBytes",
    ),
    (
        "runnel-agent",
        "{policy: {deletesPerHour: 0}}",
        "/policy/deletesPerHour",
    ),
    (
        "runnel-agent",
        "{policy: {overwrite: 'true'}}",
        "/policy/overwrite",
    ),
    (
        "runnel-agent",
        "{policy: {onRevoke: keep}}",
        "/policy/onRevoke",
    ),
    (
        "runnel-agent",
        "{policy: {createNamespace: true}}",
        "additional properties 'createNamespace'",
    ),
    (
        "runnel-agent",
        "{join: {string: a, existingSecret: b}}",
        "join.existingSecret",
    ),
    (
        "runnel-agent",
        "{join: {string: abc}}",
        "join.string: this is no join string",
    ),
    (
        "runnel-agent",
        "{join: {string: 'runnel-join-v1.ab cd'}}",
        "join.string: this is no join string",
    ),
    (
        "runnel-agent",
        "{proxy: {httpsProxy: 'socks5://proxy:1080'}}",
        "proxy.httpsProxy",
    ),
    (
        "runnel-agent",
        "{proxy: {httpsProxy: 'https://proxy:3128'}}",
        "proxy.httpsProxy",
    ),
    (
        "runnel-agent",
        "{proxy: {httpsProxy: 'http://name:s3cr3t@proxy:3128'}}",
        "proxy.httpsProxy",
    ),
    (
        "runnel-agent",
        "{proxy: {noProxy: '10.0.0.0/8'}}",
        "/proxy/noProxy",
    ),
    ("runnel-agent", "{extraArgs: [run]}", "/extraArgs/0"),
    (
        "runnel-agent",
        "{policy: {impersonate: [{hubNamespace: team-a}]}}",
        "/policy/impersonate/0",
    ),
    (
        "runnel-agent",
        "{policy: {impersonate: [{hubNamespace: 'team-*', serviceAccount: tenants/a}]}}",
        "/policy/impersonate/0/hubNamespace",
    ),
    (
        "runnel-agent",
        "{policy: {impersonate: [{hubNamespace: team-a, serviceAccount: team-a}]}}",
        "/policy/impersonate/0/serviceAccount",
    ),
    (
        "runnel-agent",
        "{policy: {impersonate: [{hubNamespace: team-a, serviceAccount: t/a}, {hubNamespace: team-a, serviceAccount: t/b}]}}",
        "policy.impersonate: team-a has two entries",
    ),
];
