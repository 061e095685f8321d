//! A task that polls a set of futures itself awaits nothing else in between: the futures stand still meanwhile, and what the
//! task awaits may need one of them, such as room in a channel.
use std::fs;

use anyhow::{Context, Result};
use runnel_tests::files::files_below;
use syn::visit::{self, Visit};

use super::{CRATES, none, root};

/// The texts of the `select!` macros of a file, without spaces.
#[derive(Default)]
struct Selects(Vec<String>);

impl<'ast> Visit<'ast> for Selects {
    fn visit_macro(&mut self, one: &'ast syn::Macro) {
        if one
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "select")
        {
            self.0.push(one.tokens.to_string().replace([' ', '\n'], ""));
        }
        visit::visit_macro(self, one);
    }
}

/// Whether a file has a `select!` that polls the futures of a set and awaits something else.
fn keeps_futures_waiting(text: &str) -> Result<bool> {
    let mut selects = Selects::default();
    selects.visit_file(&syn::parse_file(text)?);
    let polls_and_awaits =
        |select: &String| select.contains(".next()") && select.contains(".await");
    Ok(text.contains("FuturesUnordered") && selects.0.iter().any(polls_and_awaits))
}

#[test]
fn arms_beside_polled_futures_await_nothing() -> Result<()> {
    let mut wrong = Vec::new();
    for (_, folder) in CRATES {
        for path in files_below(&root().join(folder).join("src"), "rs")? {
            let text = fs::read_to_string(&path)?;
            if keeps_futures_waiting(&text).with_context(|| path.display().to_string())? {
                let hint = "spawn the futures in a JoinSet, or wait in an arm of its own";
                wrong.push(format!(
                    "{}: an arm of select! awaits: {hint}",
                    path.display()
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn awaiting_arm_is_found() -> Result<()> {
    let text = |arm: &str| {
        format!(
            "use futures::stream::FuturesUnordered;
             async fn f() {{ loop {{ tokio::select! {{ Some(a) = running.next() => {{}} a = b() => {arm} }} }} }}"
        )
    };
    assert!(keeps_futures_waiting(&text("self.send(a).await?,"))?);
    assert!(!keeps_futures_waiting(&text("queue.push(a),"))?);
    assert!(!keeps_futures_waiting(
        &text("c.await,").replace("FuturesUnordered", "StreamExt")
    )?);
    Ok(())
}
