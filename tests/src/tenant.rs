//! A tenant of the hub, and the objects that its program needs in the members.

use serde_json::{Value, json};

/// The API group of roles and bindings.
pub const RBAC: &str = "rbac.authorization.k8s.io";
/// The name of the program, and of its objects.
pub const PROGRAM: &str = "web";

/// A tenant.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    /// The namespace of its sources and rules on the hub.
    pub namespace: &'static str,
    /// The namespace of its program in the members.
    pub target: &'static str,
}

impl Tenant {
    /// An object of the tenant on the hub, with these fields besides its metadata.
    #[must_use]
    pub fn object(&self, api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
        let metadata = json!({"namespace": self.namespace, "name": name, "labels": {"app": name}});
        let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
            object.extend(rest);
        }
        object
    }

    /// A binding of the program's account to a role.
    #[must_use]
    pub fn binding(&self, name: &str, kind: &str, role: &str) -> Value {
        let subject = json!({"kind": "ServiceAccount", "name": PROGRAM, "namespace": self.target});
        let role = json!({"apiGroup": RBAC, "kind": kind, "name": role});
        let rest = json!({"roleRef": role, "subjects": [subject]});
        self.object(&format!("{RBAC}/v1"), "RoleBinding", name, rest)
    }

    /// The program's Service, ServiceAccount, Role and RoleBinding.
    #[must_use]
    pub fn needs(&self) -> [Value; 4] {
        let ports = json!([{"port": 80}]);
        let service = json!({"spec": {"selector": {"app": PROGRAM}, "ports": ports}});
        let reads =
            json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
        let rbac = format!("{RBAC}/v1");
        [
            self.object("v1", "Service", PROGRAM, service),
            self.object("v1", "ServiceAccount", PROGRAM, json!({})),
            self.object(&rbac, "Role", PROGRAM, json!({"rules": reads})),
            self.binding(PROGRAM, "Role", PROGRAM),
        ]
    }

    /// The grant of these kinds in every namespace of every cluster to the rules of the tenant.
    #[must_use]
    pub fn grant(&self, kinds: &[&str]) -> Value {
        let spec = json!({
            "rules": {"namespaces": {"names": [self.namespace]}}, "resources": kinds, "clusters": {"all": true},
            "namespaces": {"all": true},
        });
        let metadata = json!({"name": self.namespace});
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": metadata, "spec": spec,
        })
    }
}
