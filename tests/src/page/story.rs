//! The page with a live fleet: what each view shows, and how it follows changes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Client;
use serde_json::{Value, json};

use super::browser::{Browser, CONTROL, DOWN, ENTER, ESCAPE, HOME, RIGHT};
use super::plugin::Ui;
use super::screenshots::Screenshots;
use crate::demo::narrate::Narrator;
use crate::fleet::{Fleet, FleetOptions};
use crate::scene::{Draft, Id, RuleDraft, Scene};
use crate::wait::eventually;

const MEMBERS: usize = 3;
const SOON: Duration = Duration::from_secs(90);
/// The time from the change in the API server until the page shows it.
const LIMIT: Duration = Duration::from_secs(2);
const VIEW: &str = "/apis/view.runnel.dev/v1alpha1";

/// A fleet with rules in several states, and a browser that shows them.
pub struct Story<'a> {
    narrator: &'a mut Narrator,
    screenshots: Option<Screenshots<'a>>,
    folder: &'a Path,
    fleet: Fleet,
    scene: Scene,
    client: Client,
    ui: Ui,
    browser: Browser,
}

/// Starts a fleet, and checks everything that the page shows of it.
///
/// # Errors
/// With the first difference between the page and the API server.
pub async fn check(
    narrator: &mut Narrator,
    folder: &Path,
    screenshots: Option<Screenshots<'_>>,
) -> Result<()> {
    narrator.step("A hub with three members, and rules in several states");
    let begin = Instant::now();
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        hub_values: json!({"view": {"enabled": true}, "lease": {"duration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    prepare(&scene).await?;
    let client = fleet.hub().client().await?;
    let plugin = fleet.binaries().folder.join("kubectl-runnel");
    let log = folder.join("ui.log");
    let ui = Ui::start(&plugin, fleet.hub().kubeconfig(), &log, &[]).await?;
    let browser = Browser::start(folder).await?;
    browser.open(&ui.url).await?;
    narrator.took(
        "the fleet, its rules and a browser are ready",
        begin.elapsed(),
    );
    let mut story = Story {
        narrator,
        screenshots,
        folder,
        fleet,
        scene,
        client,
        ui,
        browser,
    };
    story.strangers().await?;
    story.matrix().await?;
    story.keyboard().await?;
    story.delivery().await?;
    story.rollout().await?;
    story.approvals().await?;
    story.history_and_times().await?;
    story.restart().await?;
    story.rights().await
}

/// Makes rules that are ready, failed, waiting, in a rollout and blocked.
async fn prepare(scene: &Scene) -> Result<()> {
    let namespaces = ["shop", "ops", "platform"];
    scene.hub_namespaces(&namespaces).await?;
    scene.member_namespaces(&namespaces).await?;
    for (number, region) in [(1, "eu"), (2, "eu"), (3, "us")] {
        let labels =
            json!({"metadata": {"labels": {"region": region, "tier": number.to_string()}}});
        let member = Id::member(&format!("member-{number}"));
        scene.hub.change(&member, labels).await?;
    }
    let hub = &scene.hub;
    let foreign = Draft::secret("shop", "login").data("password", "foreign");
    scene.member(2).make(&foreign.json()).await?;
    for source in [
        Draft::config_map("shop", "settings").data("color", "blue"),
        Draft::secret("shop", "login").data("password", "canary"),
        Draft::config_map("shop", "campaign").data("text", "soon"),
        Draft::config_map("ops", "proxy").data("url", "proxy-1"),
        Draft::config_map("platform", "ca").data("ca.crt", "text"),
    ] {
        hub.make(&source.json()).await?;
    }
    for number in 0..4 {
        let source = Draft::config_map("platform", &format!("limits-{number}"));
        hub.make(
            &source
                .label("set", if number == 0 { "kept" } else { "all" })
                .label("limits", "yes")
                .json(),
        )
        .await?;
    }
    let rollout = json!({"maxConcurrency": 1, "orderByLabel": "tier", "maxFailures": 2});
    let ca = json!({"resources": ["configmaps"], "namespaces": ["platform"], "names": ["ca"]});
    for rule in [
        RuleDraft::new("shop", "settings")
            .named(&["settings"])
            .everywhere(),
        RuleDraft::new("shop", "login")
            .named(&["login"])
            .everywhere(),
        RuleDraft::new("shop", "campaign")
            .named(&["campaign"])
            .everywhere()
            .into(&["campaign"]),
        RuleDraft::new("ops", "proxy")
            .named(&["proxy"])
            .everywhere()
            .with("rollout", rollout),
        RuleDraft::new("platform", "limits")
            .labeled("limits", "yes")
            .everywhere()
            .with("removalLimit", json!({"count": 1, "percent": 1})),
        RuleDraft::cluster_scoped("ca-bundle")
            .source(ca)
            .everywhere()
            .into(&["platform"]),
    ] {
        hub.make(&rule.json()).await?;
    }
    hub.wait_ready(&Id::rule("shop", "settings"), "True", "AllApplied")
        .await?;
    hub.wait_failed(&Id::rule("shop", "login"), "Conflict", 1)
        .await?;
    hub.wait_ready(&Id::rule("shop", "campaign"), "False", "CopiesWaiting")
        .await?;
    hub.wait_ready(&Id::rule("platform", "limits"), "True", "AllApplied")
        .await?;
    hub.wait_ready(&Id::cluster_rule("ca-bundle"), "True", "AllApplied")
        .await?;
    let proxy = Id::rule("ops", "proxy");
    let phase = |wanted: &'static str| {
        move |rule: &Value| {
            let rollout = &rule["status"]["rollout"];
            ensure!(rollout["phase"] == wanted, "{rollout}");
            Ok(())
        }
    };
    hub.sees("rolled out", &proxy, phase("Completed")).await?;
    // The next change stays in its first wave.
    hub.change(&proxy, json!({"spec": {"rollout": {"soakSeconds": 600}}}))
        .await?;
    let edit = json!({"data": {"url": "proxy-2"}});
    hub.change(&Id::config_map("ops", "proxy"), edit).await?;
    hub.sees("soaking", &proxy, phase("Soaking")).await?;
    // Three of four sources are not selected any more.
    let kept = json!([{"resources": ["configmaps"], "selector": {"matchLabels": {"set": "kept"}}}]);
    let limits = Id::rule("platform", "limits");
    hub.change(&limits, json!({"spec": {"sources": kept}}))
        .await?;
    hub.wait_ready(&limits, "False", "RemovalLimit")
        .await
        .map(drop)
}

impl Story<'_> {
    /// Reads a path of the hub's API server.
    async fn get(&self, path: &str) -> Result<Value> {
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(self.client.request(request).await?)
    }

    async fn go(&self, hash: &str) -> Result<()> {
        self.browser
            .run("location.hash = arguments[0]; return null", json!([hash]))
            .await
    }

    /// Waits until the page shows what `probe` wants.
    async fn shows(&self, what: &str, probe: impl AsyncFn() -> Result<bool>) -> Result<()> {
        eventually(what, SOON, async || Ok(probe().await?.then_some(()))).await
    }

    /// Waits until an element has a text.
    async fn has(&self, selector: &str, text: &str) -> Result<()> {
        self.shows(&format!("{selector} has {text:?}"), async || {
            let shown = self.browser.text(selector).await?;
            ensure!(shown.contains(text), "it has {shown:?}");
            Ok(true)
        })
        .await
    }

    /// Waits until the API server has a change and the page shows it, which must not be much later.
    async fn follows(
        &mut self,
        what: &str,
        stored: impl AsyncFn(&Self) -> Result<bool>,
        shown: impl AsyncFn(&Self) -> Result<bool>,
    ) -> Result<()> {
        let mut at = None;
        let story = &*self;
        let late = eventually(what, SOON, async || {
            if at.is_none() && stored(story).await? {
                at = Some(Instant::now());
            }
            ensure!(shown(story).await?, "stored: {}", at.is_some());
            // The page can be first, because it watches.
            Ok(at.map(|at| at.elapsed()))
        })
        .await?;
        ensure!(
            late <= LIMIT,
            "{what}: the page shows it {late:?} after the API server"
        );
        self.narrator.took(what, late);
        Ok(())
    }

    async fn strangers(&mut self) -> Result<()> {
        self.narrator.step(
            "Requests without the token, of other hosts and pages, and other methods are refused",
        );
        self.ui.refuses_strangers().await?;
        self.ui.listens_locally_only()
    }

    /// The texts of all deliveries, as the page words them.
    async fn expected(&self) -> Result<Vec<String>> {
        let mut expected = Vec::new();
        for plural in ["deliveries", "clusterdeliveries"] {
            let list = self.get(&format!("{VIEW}/{plural}")).await?;
            for item in list["items"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let (spec, status) = (&item["spec"], &item["status"]);
                let namespace = text(&item["metadata"]["namespace"]);
                let rule = match namespace.as_str() {
                    "" => text(&spec["rule"]),
                    _ => format!("{namespace}/{}", text(&spec["rule"])),
                };
                let (cluster, state) = (text(&spec["cluster"]), text(&status["state"]));
                // Failed and unreachable clusters never have the newest revision.
                let is_plain = ["Failed", "Unreachable"].contains(&state.as_str());
                let older = if status["newest"] == true || is_plain {
                    ""
                } else {
                    ", older revision"
                };
                let reason = match text(&status["reason"]).as_str() {
                    "" | "AllApplied" => String::new(),
                    reason => format!(": {reason}"),
                };

                expected.push(format!("{rule} in {cluster}: {state}{older}{reason}"));
            }
        }
        expected.sort();
        ensure!(!expected.is_empty(), "there are no deliveries");
        Ok(expected)
    }

    /// Reads every cell of the matrix, as a screen reader does.
    async fn cells(&self) -> Result<Vec<String>> {
        let size = "const grid = document.getElementById('matrix'); grid.focus();
            return ['aria-rowcount', 'aria-colcount'].map((name) => Number(grid.getAttribute(name)))";
        let [rows, columns]: [usize; 2] = self.browser.run(size, json!([])).await?;
        self.browser.chord(CONTROL, HOME).await?;
        let mut cells = Vec::new();
        for row in 1..rows {
            for column in 1..columns {
                cells.push(self.browser.text("#matrix-cell").await?);
                if column + 1 < columns {
                    self.browser.keys(&[RIGHT]).await?;
                }
            }
            if row + 1 < rows {
                self.browser.keys(&[HOME, DOWN]).await?;
            }
        }
        cells.sort();
        Ok(cells)
    }

    async fn matrix(&mut self) -> Result<()> {
        self.narrator
            .step("The matrix shows every delivery, also without colors");
        self.has("#live", "live").await?;
        self.shows("the cells are those of the API server", async || {
            let (cells, expected) = (self.cells().await?, self.expected().await?);
            ensure!(
                cells == expected,
                "the page has {cells:?}, the API server {expected:?}"
            );
            Ok(true)
        })
        .await?;
        let glyphs: Vec<String> = self
            .browser
            .run("return [...document.querySelectorAll('.legend .glyph')].slice(0, 7).map((glyph) => glyph.textContent)", json!([]))
            .await?;
        let mut different = glyphs.clone();
        different.sort();
        different.dedup();
        ensure!(
            different.len() == 7,
            "the states have the glyphs {glyphs:?}"
        );
        let fleet = self.get("/apis/runnel.dev/v1alpha1/fleets/default").await?;
        for field in ["clusters", "rules", "copies"] {
            self.has(
                "#figures",
                fleet["status"][field].as_str().context("no figure")?,
            )
            .await?;
        }
        self.browser
            .run::<()>(
                "document.getElementById('table').click(); return null",
                json!([]),
            )
            .await?;
        self.has("table.rules tbody", "shop/login").await?;
        self.has(
            "table.rules tbody",
            "an object that is not Runnel's exists here",
        )
        .await?;
        self.browser
            .run(
                "document.getElementById('table').click(); return null",
                json!([]),
            )
            .await
    }

    async fn keyboard(&mut self) -> Result<()> {
        self.narrator
            .step("The keyboard alone searches, opens and goes back");
        self.shows("the matrix is back", async || {
            Ok(!self.browser.text("#matrix-cell").await?.is_empty())
        })
        .await?;
        self.browser
            .run::<()>(
                "document.getElementById('matrix').focus(); return null",
                json!([]),
            )
            .await?;
        self.browser.keys(&["/"]).await?;
        self.browser.keys(&["f", "a"]).await?;
        self.has("#matrix", "Nothing matches the search.").await?;
        self.browser.keys(&[ENTER]).await?;
        let focused: String = self
            .browser
            .run("return document.activeElement.id", json!([]))
            .await?;
        ensure!(
            focused == "matrix",
            "an empty matrix has no focus: {focused}"
        );
        self.browser.keys(&[ESCAPE]).await?;
        self.browser.keys(&["/"]).await?;
        self.browser
            .keys(&["f", "a", "i", "l", "e", "d", ENTER])
            .await?;
        self.shows("one rule and one cluster are left", async || {
            let counts = "const grid = document.getElementById('matrix');
                return [grid.getAttribute('aria-rowcount'), grid.getAttribute('aria-colcount')].join()";
            let counts: String = self.browser.run(counts, json!([])).await?;
            ensure!(counts == "2,2", "{counts}");
            Ok(true)
        })
        .await?;
        self.browser.chord(CONTROL, HOME).await?;
        self.has("#matrix-cell", "shop/login in member-2: Failed: Conflict")
            .await?;
        self.browser.keys(&[ENTER]).await?;
        self.has("h1", "shop/login in member-2").await?;
        self.browser.keys(&[ESCAPE]).await?;
        self.has("#matrix-cell", "shop/login in member-2").await?;
        self.browser.keys(&[ESCAPE]).await?;
        self.shows("the search is empty", async || {
            let rows: String = self
                .browser
                .run(
                    "return document.getElementById('matrix').getAttribute('aria-rowcount')",
                    json!([]),
                )
                .await?;
            Ok(rows == "7")
        })
        .await
    }

    async fn delivery(&mut self) -> Result<()> {
        self.narrator.step("A delivery and its copies");
        self.go("#/delivery/shop%2Flogin/member-2").await?;
        self.has(".heading .state", "Failed").await?;
        self.has("#main", "secrets/shop/login").await?;
        self.has("#main", "an object that is not Runnel's exists here")
            .await?;
        let copies = format!(
            "{VIEW}/namespaces/shop/copies?fieldSelector=rule%3Dlogin%2Ccluster%3Dmember-2"
        );
        let listed = self.get(&copies).await?;
        ensure!(
            listed["items"]
                .as_array()
                .is_some_and(|items| items.len() == 1),
            "{listed}"
        );
        self.has(
            "table.copies tbody tr",
            listed["items"][0]["status"]["reason"]
                .as_str()
                .context("no reason")?,
        )
        .await?;
        let shown: String = self
            .browser
            .run("return document.documentElement.outerHTML", json!([]))
            .await?;
        ensure!(
            !shown.contains("canary"),
            "the page shows the value of a Secret"
        );
        self.picture("delivery").await?;
        self.scene
            .member(2)
            .delete(&Id::secret("shop", "login"))
            .await?;
        let path = format!("{VIEW}/namespaces/shop/deliveries/login:member-2");
        self.follows(
            "a delivery that becomes ready",
            async |story| Ok(story.get(&path).await?["status"]["state"] == "Ready"),
            async |story| {
                let state = story.browser.text(".heading .state").await?;
                let applied = story.browser.text("#delivery").await?;
                let copy = story.browser.text("table.copies tbody tr").await?;
                Ok(state.ends_with("Ready") && applied.contains("1/1") && copy.contains("Applied"))
            },
        )
        .await
    }

    async fn rollout(&mut self) -> Result<()> {
        self.narrator.step("A rollout in waves");
        self.go("#/rule/ops%2Fproxy").await?;
        let rule = self.scene.hub.get(&Id::rule("ops", "proxy")).await?;
        let rollout = &rule["status"]["rollout"];
        ensure!(rollout["wave"] == 1, "{rollout}");
        let picture = async |story: &Self| -> Result<String> {
            let script =
                "return document.querySelector('svg.rollout')?.getAttribute('aria-label') ?? ''";
            story.browser.run(script, json!([])).await
        };
        let first = "Wave 1, the current wave: 1 has the change. Wave 2: 1 waits for its wave. Wave 3: 1 waits for its wave";
        self.shows("the waves are drawn", async || {
            let drawn = picture(self).await?;
            ensure!(drawn == first, "{drawn}");
            Ok(true)
        })
        .await?;
        for text in ["Soaking", "ordered by tier", "0 of 2", "then stop", " left"] {
            self.has("#main", text).await?;
        }
        self.picture("rollout").await?;
        let rule = Id::rule("ops", "proxy");
        let none = json!({"spec": {"rollout": {"soakSeconds": 0}}});
        self.scene.hub.change(&rule, none).await?;
        self.follows(
            "a rollout that completes",
            async |story| {
                Ok(story.scene.hub.get(&rule).await?["status"]["rollout"]["phase"] == "Completed")
            },
            async |story| {
                let drawn = picture(story).await?;
                let phase = story.browser.text("#main").await?;
                Ok(!drawn.contains("waits") && phase.contains("Completed"))
            },
        )
        .await
    }

    async fn approvals(&mut self) -> Result<()> {
        self.narrator.step("A removal that waits for approval");
        self.go("#/approvals").await?;
        let limits = Id::rule("platform", "limits");
        let rule = self.scene.hub.get(&limits).await?;
        let pending = &rule["status"]["pendingApproval"];
        ensure!(pending["copies"] == 9, "{pending}");
        for text in [
            "9 copies in 3 clusters would be removed",
            pending["cause"].as_str().context("no cause")?,
            pending["names"][0].as_str().context("no name")?,
            "kubectl runnel approve platform/limits",
        ] {
            self.has("#main", text).await?;
        }
        let digest =
            json!({"metadata": {"annotations": {"runnel.dev/approve": pending["digest"]}}});
        self.scene.hub.change(&limits, digest).await?;
        self.follows(
            "an approval",
            async |story| {
                let fleet = story
                    .get("/apis/runnel.dev/v1alpha1/fleets/default")
                    .await?;
                let rule = story.scene.hub.get(&limits).await?;
                let none = fleet["status"]["pendingApprovals"]
                    .as_array()
                    .is_none_or(Vec::is_empty);
                Ok(none && rule["status"]["pendingApproval"].is_null())
            },
            async |story| {
                Ok(story
                    .browser
                    .text("#main")
                    .await?
                    .contains("Nothing waits for approval."))
            },
        )
        .await
    }

    async fn history_and_times(&mut self) -> Result<()> {
        self.narrator.step("History, a cluster, and delivery times");
        self.go("#/history").await?;
        let events = "/apis/events.k8s.io/v1/namespaces/platform/events?fieldSelector=regarding.name%3Dlimits";
        self.follows(
            "an Event",
            async |story| {
                let list = story.get(events).await?;
                let items = list["items"].as_array().context("no items")?;
                Ok(items.iter().any(|event| event["reason"] == "CopiesRemoved"))
            },
            async |story| {
                let rows = story.browser.text("table.history").await?;
                Ok(rows.contains("platform/limits") && rows.contains("CopiesRemoved"))
            },
        )
        .await?;
        self.go("#/cluster/member-3").await?;
        self.has("h1", "member-3").await?;
        let member = Id::member("member-3");
        let label = json!({"metadata": {"labels": {"stage": "canary"}}});
        self.scene.hub.change(&member, label).await?;
        self.follows(
            "a label of a cluster",
            async |story| {
                Ok(story.scene.hub.get(&member).await?["metadata"]["labels"]["stage"] == "canary")
            },
            async |story| {
                Ok(story
                    .browser
                    .text(".heading .labels")
                    .await?
                    .contains("stage=canary"))
            },
        )
        .await?;
        self.go("#/rule/shop%2Fsettings").await?;
        self.has("h1", "shop/settings").await?;
        let rule = Id::rule("shop", "settings");
        let revision = |rule: &Value| rule["status"]["revision"].clone();
        let before = revision(&self.scene.hub.get(&rule).await?);
        let edit = json!({"data": {"color": "green"}});
        self.scene
            .hub
            .change(&Id::config_map("shop", "settings"), edit)
            .await?;
        self.follows(
            "an edit as a mark of the plot",
            async |story| Ok(revision(&story.scene.hub.get(&rule).await?) != before),
            async |story| {
                let marks =
                    "return document.querySelectorAll('svg.plot circle, svg.plot path').length";
                Ok(story.browser.run::<usize>(marks, json!([])).await? > 0)
            },
        )
        .await
    }

    async fn restart(&mut self) -> Result<()> {
        self.narrator.step("The hub stops and starts again");
        self.go("#/").await?;
        self.browser
            .run::<()>("window.loadedOnce = true; return null", json!([]))
            .await?;
        let before = self.cells().await?;
        let begin = Instant::now();
        self.fleet.stop_hub().await?;
        self.has("#banners", "The hub is silent").await?;
        self.has("#banners", "the view API does not answer now")
            .await?;
        self.narrator
            .took("the page tells that the hub is silent", begin.elapsed());
        let meanwhile = self.cells().await?;
        ensure!(
            meanwhile == before,
            "the last reported state is {before:?}, the page has {meanwhile:?}"
        );
        let begin = Instant::now();
        self.fleet.start_hub().await?;
        self.shows("the page is live again", async || {
            let banners = self.browser.text("#banners").await?;
            ensure!(banners.is_empty(), "{banners}");
            Ok(self.browser.text("#live").await? == "live")
        })
        .await?;
        self.narrator
            .took("the hub runs, and the page is live again", begin.elapsed());
        let foreign = Draft::config_map("shop", "settings-2").data("color", "foreign");
        self.scene.member(3).make(&foreign.json()).await?;
        let source = Draft::config_map("shop", "settings-2").data("color", "red");
        self.scene.hub.make(&source.json()).await?;
        let more = json!([{"resources": ["configmaps"], "names": ["settings*"]}]);
        let rule = Id::rule("shop", "settings");
        self.scene
            .hub
            .change(&rule, json!({"spec": {"sources": more}}))
            .await?;
        let path = format!("{VIEW}/namespaces/shop/deliveries/settings:member-3");
        let failed = "shop/settings in member-3: Failed: Conflict".to_owned();
        self.follows(
            "a delivery that fails, in the matrix",
            async |story| Ok(story.get(&path).await?["status"]["state"] == "Failed"),
            // The worst rule and the worst cluster are first.
            async |story| {
                story.browser.chord(CONTROL, HOME).await?;
                Ok(story.browser.text("#matrix-cell").await? == failed)
            },
        )
        .await?;
        let kept: bool = self
            .browser
            .run("return window.loadedOnce === true", json!([]))
            .await?;
        ensure!(kept, "the page was loaded again");
        Ok(())
    }

    async fn rights(&mut self) -> Result<()> {
        self.narrator
            .step("A user without rights reads why nothing is shown");
        let hub = self.fleet.hub();
        hub.kubectl(&["create", "serviceaccount", "guest", "-n", "shop"])
            .await?;
        let kubeconfig = hub.token_kubeconfig("shop", "guest").await?;
        let plugin = self.fleet.binaries().folder.join("kubectl-runnel");
        let log = self.folder.join("guest.log");
        let ui = Ui::start(&plugin, &kubeconfig, &log, &["-n", "shop"]).await?;
        self.browser.open(&ui.url).await?;
        self.has("#banners", "You may not list").await?;
        for name in [
            "the Fleet",
            "DistributionRules",
            "MemberClusters",
            "Events",
            "deliveries",
        ] {
            self.has("#banners", name).await?;
        }
        self.has("#banners", "the ClusterRole runnel-hub-view")
            .await
    }

    async fn picture(&self, name: &str) -> Result<()> {
        match &self.screenshots {
            Some(screenshots) => screenshots.take(&self.browser, name).await,
            None => Ok(()),
        }
    }
}
