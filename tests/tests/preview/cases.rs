//! Rules of all sorts: the former state, the rule, and the expected counts of its plan. The test
//! checks that each copy then becomes what the plan shows.

use runnel_tests::scene::{Draft, Id, RuleDraft};
use serde_json::{Value, json};

/// One rule.
pub struct Case {
    pub name: &'static str,
    /// Whether the grant for all is for its namespace.
    pub granted: bool,
    pub on_hub: Vec<Value>,
    pub namespaces: Vec<Value>,
    pub in_members: Vec<(usize, Value)>,
    /// Rules that are saved and applied before.
    pub before: Vec<Value>,
    /// What changes on the hub after that.
    pub edits: Vec<(Id, Value)>,
    /// What its rollout has come to by then; empty: it has none under way.
    pub phase: &'static str,
    /// The rule that is planned and then saved.
    pub rule: Value,
    /// The expected numbers of copies by outcome.
    pub summary: Value,
}

impl Case {
    pub fn home(&self) -> String {
        format!("if-{}", self.name)
    }

    fn second(&self) -> String {
        format!("{}-b", self.home())
    }

    /// A case with the namespaces `HOME` and `HOME-b`, and a rule that is not there yet.
    fn new(name: &'static str, summary: Value) -> Self {
        let mut case = Self {
            name,
            granted: true,
            on_hub: vec![],
            namespaces: vec![],
            in_members: vec![],
            before: vec![],
            edits: vec![],
            phase: "",
            rule: Value::Null,
            summary,
        };
        case.namespaces = [case.home(), case.second()]
            .iter()
            .map(|name| Draft::namespace(name).json())
            .collect();
        case
    }

    fn draft(&self) -> RuleDraft {
        RuleDraft::new(&self.home(), "all").everywhere()
    }

    /// So many ConfigMaps `s0`, `s1`, ... on the hub, labeled by their turn.
    fn sources(mut self, count: usize) -> Self {
        for number in 0..count {
            let part = if number < 2 { "first" } else { "rest" };
            let source = Draft::config_map(&self.home(), &format!("s{number}"))
                .label("set", "a")
                .label("part", part);
            self.on_hub.push(source.data("k", "v").json());
        }
        self
    }

    fn rule(mut self, rule: impl FnOnce(RuleDraft, [&str; 2]) -> RuleDraft) -> Self {
        self.rule = rule(self.draft(), [&self.home(), &self.second()]).json();
        self
    }

    /// The rule as it is saved before.
    fn saved(mut self, rule: impl FnOnce(RuleDraft, [&str; 2]) -> RuleDraft) -> Self {
        let saved = rule(self.draft(), [&self.home(), &self.second()]).json();
        self.before.push(saved);
        self
    }

    /// A foreign object in member-1.
    fn existing(mut self, name: &str, value: &str) -> Self {
        let object = Draft::config_map(&self.home(), name)
            .data("k", value)
            .json();
        self.in_members.push((1, object));
        self
    }
}

fn labeled(rule: RuleDraft, key: &str, value: &str) -> RuleDraft {
    rule.source(json!({"resources": ["configmaps"], "selector": {"matchLabels": {key: value}}}))
}

fn named(rule: RuleDraft, names: &[&str]) -> RuleDraft {
    rule.source(json!({"resources": ["configmaps"], "names": names}))
}

/// Grants for the cases that the grant for all is not for.
pub fn grants() -> Vec<Value> {
    let grant = |name: &str, home: &str, resources: &[&str], namespaces: Value| {
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": name},
            "spec": {
                "rules": {"namespaces": {"names": [home]}}, "resources": resources, "clusters": {"names": ["member-1"]},
                "namespaces": namespaces,
            },
        })
    };
    vec![
        grant(
            "if-one",
            "if-granted-in-part",
            &["configmaps"],
            json!({"names": ["if-granted-in-part"]}),
        ),
        grant(
            "if-kind",
            "if-granted-a-kind",
            &["secrets"],
            json!({"all": true}),
        ),
    ]
}

pub fn all() -> Vec<Case> {
    let mut all = new_rules();
    all.extend(takeovers());
    all.extend(edits());
    all.extend(shapes());
    all.extend(contests());
    all.extend(secrets());
    all.extend(rollouts());
    all
}

/// Rules of which a cluster takes no part, member-2, once all is set up.
pub fn without_one(what: &str) -> Vec<Case> {
    let [new, edit, change] = match what {
        "cordoned" => ["cordoned-new", "cordoned-edit", "cordoned-change"],
        _ => ["away-new", "away-edit", "away-change"],
    };
    // Copies that are no longer selected are removed from a cordoned cluster as from others.
    let (edited, changed) = match what {
        "cordoned" => (
            json!({"create": 1, "remove": 2, "unchanged": 2}),
            json!({"change": 1, "unchanged": 1}),
        ),
        _ => (
            json!({"create": 1, "remove": 1, "unchanged": 1}),
            json!({"change": 1}),
        ),
    };
    let more = json!({"labels": {"add": {"more": "yes"}}});
    vec![
        Case::new(new, json!({"create": 1}))
            .sources(1)
            .rule(|rule, _| named(rule, &["s0"])),
        Case::new(edit, edited)
            .sources(3)
            .saved(|rule, _| named(rule, &["s0", "s1"]))
            .rule(|rule, _| named(rule, &["s1", "s2"])),
        Case::new(change, changed)
            .sources(1)
            .saved(|rule, _| named(rule, &["s0"]))
            .rule(|rule, _| named(rule, &["s0"]).with("transform", more)),
    ]
}

fn new_rules() -> Vec<Case> {
    let secret = |case: Case| {
        let secret = Draft::secret(&case.home(), "login")
            .label("set", "a")
            .data("password", "x")
            .json();
        Case {
            on_hub: [case.on_hub.clone(), vec![secret]].concat(),
            ..case
        }
    };
    let plain = |name, summary| Case::new(name, summary).sources(1);
    let refusing = |case: Case| {
        let namespaces = vec![
            Draft::namespace(&case.home()).json(),
            Draft::namespace(&case.second())
                .annotation("runnel.dev/inbound", "deny")
                .json(),
        ];
        Case { namespaces, ..case }
    };
    let picky = |case: Case| {
        let namespaces = vec![
            Draft::namespace(&case.home()).label("if", "labels").json(),
            Draft::namespace(&case.second()).json(),
        ];
        Case { namespaces, ..case }
    };
    let unwilling = Case::new("an-owner-refuses", json!({"create": 2})).sources(1);
    let forbidden = Draft::config_map(&unwilling.home(), "no")
        .annotation("runnel.dev/distribute", "false")
        .json();
    vec![
        secret(plain("new", json!({"create": 4}))).rule(|rule, _| rule.labeled("set", "a")),
        Case::new("by-glob", json!({"create": 6}))
            .sources(3)
            .rule(|rule, _| named(rule, &["s*"])),
        plain("into-two", json!({"create": 4}))
            .rule(|rule, [a, b]| named(rule, &["s0"]).into(&[a, b])),
        plain("not-there-yet", json!({"create": 2, "wait": 2}))
            .rule(|rule, [a, _]| named(rule, &["s0"]).into(&[a, &format!("{a}-later")])),
        plain("made-for-it", json!({"create": 4})).rule(|rule, [a, _]| {
            named(rule, &["s0"])
                .into(&[a, &format!("{a}-made")])
                .with("createNamespaces", json!(true))
        }),
        refusing(plain(
            "a-namespace-refuses",
            json!({"create": 2, "denied": 2}),
        ))
        .rule(|rule, [a, b]| named(rule, &["s0"]).into(&[a, b])),
        picky(plain("by-namespace-label", json!({"create": 2}))).rule(|rule, _| {
            named(rule, &["s0"]).with(
                "namespaces",
                json!({"selector": {"matchLabels": {"if": "labels"}}}),
            )
        }),
        plain("one-cluster", json!({"create": 1}))
            .rule(|rule, _| named(rule, &["s0"]).to(&["member-1"])),
        plain("rests", json!({"noop": 2}))
            .rule(|rule, _| named(rule, &["s0"]).with("suspend", json!(true))),
        Case {
            on_hub: [unwilling.on_hub.clone(), vec![forbidden]].concat(),
            ..unwilling
        }
        .rule(|rule, _| named(rule, &["*"]).with("namespaces", json!(null))),
        Case {
            granted: false,
            ..plain("granted-in-part", json!({"create": 1}))
        }
        .rule(|rule, [a, b]| named(rule, &["s0"]).into(&[a, b])),
        Case {
            granted: false,
            ..secret(plain("granted-a-kind", json!({"create": 1})))
        }
        .rule(|rule, _| rule.named(&["*"])),
        Case {
            granted: false,
            ..plain("not-granted", json!({}))
        }
        .rule(|rule, _| named(rule, &["s0"])),
    ]
}

fn takeovers() -> Vec<Case> {
    let policy = |name, summary, value: &str, policy: &'static str| {
        let case = Case::new(name, summary).sources(1).existing("s0", value);
        case.rule(move |rule, _| named(rule, &["s0"]).with("conflictPolicy", json!(policy)))
    };
    let mut many = Case::new("many-takeovers", json!({"create": 12, "takeOver": 12})).sources(12);
    for number in 0..12 {
        many = many.existing(&format!("s{number}"), "theirs");
    }
    vec![
        policy(
            "conflict",
            json!({"conflict": 1, "create": 1}),
            "theirs",
            "Fail",
        ),
        policy(
            "equal-is-adopted",
            json!({"create": 1, "takeOver": 1}),
            "v",
            "AdoptIfEqual",
        ),
        policy(
            "unequal-is-not-adopted",
            json!({"conflict": 1, "create": 1}),
            "theirs",
            "AdoptIfEqual",
        ),
        policy(
            "overwritten",
            json!({"create": 1, "takeOver": 1}),
            "theirs",
            "Overwrite",
        ),
        many.rule(|rule, _| labeled(rule, "set", "a").with("conflictPolicy", json!("Overwrite"))),
    ]
}

fn edits() -> Vec<Case> {
    let edited = |name, summary, sources| Case::new(name, summary).sources(sources);
    let into_a_and_b = |rule: RuleDraft, [a, b]: [&str; 2]| named(rule, &["s*"]).into(&[a, b]);
    vec![
        edited("nothing-changes", json!({"unchanged": 4}), 2)
            .saved(|rule, _| named(rule, &["s*"]))
            .rule(|rule, _| named(rule, &["s*"])),
        edited("a-name-goes", json!({"remove": 2, "unchanged": 2}), 2)
            .saved(|rule, _| named(rule, &["s0", "s1"]))
            .rule(|rule, _| named(rule, &["s0"])),
        edited("a-name-comes", json!({"create": 2, "unchanged": 2}), 2)
            .saved(|rule, _| named(rule, &["s0"]))
            .rule(|rule, _| named(rule, &["s0", "s1"])),
        edited(
            "a-selector-narrows",
            json!({"remove": 4, "unchanged": 4}),
            4,
        )
        .saved(|rule, _| labeled(rule, "set", "a"))
        .rule(|rule, _| labeled(rule, "part", "first")),
        edited(
            "too-much-of-a-selector",
            json!({"blocked": 20, "unchanged": 4}),
            12,
        )
        .saved(|rule, _| labeled(rule, "set", "a"))
        .rule(|rule, _| labeled(rule, "part", "first")),
        edited(
            "what-goes-is-left",
            json!({"retain": 20, "unchanged": 4}),
            12,
        )
        .saved(|rule, _| labeled(rule, "set", "a"))
        .rule(|rule, _| labeled(rule, "part", "first").with("deletionPolicy", json!("Retain"))),
        edited("a-cluster-goes", json!({"remove": 2, "unchanged": 2}), 2)
            .saved(|rule, _| named(rule, &["s*"]).to(&["member-1", "member-2"]))
            .rule(|rule, _| named(rule, &["s*"]).to(&["member-1"])),
        edited(
            "all-clusters-but-one-go",
            json!({"blocked": 12, "unchanged": 12}),
            12,
        )
        .saved(|rule, _| named(rule, &["s*"]))
        .rule(|rule, _| named(rule, &["s*"]).to(&["member-1"])),
        edited("a-namespace-goes", json!({"remove": 4, "unchanged": 4}), 2)
            .saved(into_a_and_b)
            .rule(|rule, [a, _]| named(rule, &["s*"]).into(&[a])),
        edited("a-glob-narrows", json!({"remove": 4, "unchanged": 4}), 2)
            .saved(|rule, [a, _]| named(rule, &["s*"]).into(&[&format!("{a}*")]))
            .rule(|rule, [a, _]| named(rule, &["s*"]).into(&[a])),
        edited(
            "too-much-of-a-glob",
            json!({"blocked": 24, "unchanged": 24}),
            12,
        )
        .saved(|rule, [a, _]| named(rule, &["s*"]).into(&[&format!("{a}*")]))
        .rule(|rule, [a, _]| named(rule, &["s*"]).into(&[a])),
        edited(
            "it-rests-from-now-on",
            json!({"noop": 2, "unchanged": 2}),
            2,
        )
        .saved(|rule, _| named(rule, &["s0"]))
        .rule(|rule, _| named(rule, &["s0", "s1"]).with("suspend", json!(true))),
    ]
}

fn shapes() -> Vec<Case> {
    let one = |name, summary| Case::new(name, summary).sources(1);
    let transform =
        |rule: RuleDraft, transform: Value| named(rule, &["s0"]).with("transform", transform);
    vec![
        one("another-name", json!({"create": 2}))
            .rule(move |rule, _| transform(rule, json!({"name": "x-${source.name}"}))),
        one("a-new-name", json!({"create": 2, "remove": 2}))
            .saved(|rule, _| named(rule, &["s0"]))
            .rule(move |rule, _| transform(rule, json!({"name": "renamed"}))),
        one("a-label-more", json!({"change": 2}))
            .saved(|rule, _| named(rule, &["s0"]))
            .rule(move |rule, _| transform(rule, json!({"labels": {"add": {"more": "yes"}}}))),
        one("versions", json!({"create": 2}))
            .rule(move |rule, _| transform(rule, json!({"versionedName": {"keep": 2}}))),
        one("a-value-for-one-cluster", json!({"create": 2})).rule(|rule, _| overridden(rule)),
        one(
            "a-value-changes-in-one-cluster",
            json!({"change": 1, "unchanged": 1}),
        )
        .saved(|rule, _| named(rule, &["s0"]))
        .rule(|rule, _| overridden(rule)),
        // The live object is compared with what that cluster would get.
        one(
            "equal-to-the-clusters-own-value",
            json!({"create": 1, "takeOver": 1}),
        )
        .existing("s0", "one")
        .rule(|rule, _| overridden(rule).with("conflictPolicy", json!("AdoptIfEqual"))),
        one(
            "equal-to-the-others-value",
            json!({"conflict": 1, "create": 1}),
        )
        .existing("s0", "v")
        .rule(|rule, _| overridden(rule).with("conflictPolicy", json!("AdoptIfEqual"))),
    ]
}

/// Another value in member-1 than elsewhere.
fn overridden(rule: RuleDraft) -> RuleDraft {
    let overrides = json!([{"clusters": {"names": ["member-1"]}, "data": {"k": "one"}}]);
    named(rule, &["s0"]).with("overrides", overrides)
}

/// For foreign Secrets a plan is the same whether they are equal or not. The policy decides what
/// happens.
fn secrets() -> Vec<Case> {
    let case = |name, summary, value: &str, policy: &str| {
        let mut case = Case::new(name, summary);
        let secret = |value: &str| {
            Draft::secret(&case.home(), "login")
                .data("password", value)
                .json()
        };
        (case.on_hub, case.in_members) = (vec![secret("v")], vec![(1, secret(value))]);
        case.rule(|rule, _| rule.named(&["login"]).with("conflictPolicy", json!(policy)))
    };
    let adopted = || json!({"adoptIfEqual": 1, "create": 1});
    let overwritten = || json!({"create": 1, "takeOver": 1});
    vec![
        case("secret-equal", adopted(), "v", "AdoptIfEqual"),
        case("secret-unequal", adopted(), "theirs", "AdoptIfEqual"),
        case("lost-secret-equal", overwritten(), "v", "Overwrite"),
        case("lost-secret-unequal", overwritten(), "theirs", "Overwrite"),
    ]
}

/// Edits of rules whose last change has reached member-1 and not member-2.
fn rollouts() -> Vec<Case> {
    let slow = || json!({"maxConcurrency": 1, "soakSeconds": 3600});
    let under_way = |name, summary| {
        let mut case = Case::new(name, summary)
            .sources(2)
            .saved(|rule, _| named(rule, &["s*"]));
        case.edits = vec![
            (
                Id::rule(&case.home(), "all"),
                json!({"spec": {"rollout": slow()}}),
            ),
            (
                Id::config_map(&case.home(), "s0"),
                json!({"data": {"k": "new"}}),
            ),
        ];
        Case {
            phase: "Soaking",
            ..case
        }
    };
    let quick = |rule: RuleDraft| rule.with("rollout", json!({"maxConcurrency": 1}));
    let labeled =
        |rule: RuleDraft| rule.with("transform", json!({"labels": {"add": {"more": "yes"}}}));
    vec![
        under_way("a-rollout-goes-on", json!({"change": 1, "unchanged": 3}))
            .rule(move |rule, _| quick(named(rule, &["s*"]))),
        under_way(
            "a-rollout-is-replaced",
            json!({"change": 1, "unchanged": 3}),
        )
        .rule(|rule, _| named(rule, &["s*"])),
        under_way("a-rollout-is-overtaken", json!({"change": 4}))
            .rule(move |rule, _| quick(labeled(named(rule, &["s*"])))),
    ]
}

fn contests() -> Vec<Case> {
    let case = Case::new("an-older-rule-has-it", json!({"refused": 2})).sources(1);
    // Before the other by its name as well: they may be of one second.
    let older = RuleDraft::new(&case.home(), "a-older").everywhere();
    let loses = Case {
        before: vec![named(older, &["s0"]).json()],
        ..case
    }
    .rule(|rule, _| named(rule, &["s0"]));

    let case = Case::new("a-cluster-rule-takes-it", json!({"change": 2})).sources(1);
    let source =
        |home: &str| json!({"resources": ["configmaps"], "namespaces": [home], "names": ["s0"]});
    let whole = RuleDraft::cluster_scoped("if-takes-it")
        .everywhere()
        .source(source(&case.home()))
        .json();
    let wins = Case {
        rule: whole,
        ..case.saved(|rule, _| named(rule, &["s0"]))
    };

    // The namespace that is named first wins.
    let case = Case::new("two-sources-want-one", json!({"create": 2})).sources(1);
    let twin = Draft::config_map("default", "s0").data("k", "other").json();
    let sources = json!({"resources": ["configmaps"], "namespaces": [case.home(), "default"], "names": ["s0"]});
    let whole = RuleDraft::cluster_scoped("if-two-want-one")
        .everywhere()
        .source(sources)
        .into(&[&case.home()])
        .json();
    let first = Case {
        rule: whole,
        on_hub: [case.on_hub.clone(), vec![twin]].concat(),
        ..case
    };
    vec![loses, wins, first]
}
