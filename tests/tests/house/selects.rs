//! A task that polls a set of futures itself awaits nothing else in between: the futures stand still meanwhile, and what the
//! task awaits may need one of them, such as room in a channel.
use std::fs;

use anyhow::{Context, Result};
use runnel_tests::files::files_below;
use syn::visit::{self, Visit};

use super::{CRATES, none, root};

/// The sets that a task polls itself.
const SETS: [&str; 2] = ["FuturesUnordered", "FuturesOrdered"];

/// What a part of a file polls and awaits.
#[derive(Default)]
struct Waits {
    /// Whether a `select!` polls a set of futures.
    polls: bool,
    /// Whether anything is awaited.
    awaits: bool,
    /// Whether a loop, or one of its `select!`, does both.
    both: bool,
}

impl Waits {
    /// Takes over what a loop does; `polls` whether its condition polls a set.
    fn end_loop(&mut self, inner: &Self, polls: bool) {
        self.both |= inner.both || (inner.polls || polls) && inner.awaits;
        self.awaits |= inner.awaits;
    }
}

impl<'ast> Visit<'ast> for Waits {
    fn visit_macro(&mut self, one: &'ast syn::Macro) {
        let name = one.path.segments.last();
        if name.is_some_and(|last| last.ident == "select") {
            let text = one.tokens.to_string().replace([' ', '\n'], "");
            self.polls |= text.contains(".next()");
            self.awaits |= text.contains(".await");
            self.both |= text.contains(".next()") && text.contains(".await");
        }
        visit::visit_macro(self, one);
    }

    fn visit_expr_await(&mut self, one: &'ast syn::ExprAwait) {
        self.awaits = true;
        visit::visit_expr_await(self, one);
    }

    fn visit_expr_async(&mut self, one: &'ast syn::ExprAsync) {
        // The task does not wait for the future of a block here.
        let mut inner = Self::default();
        visit::visit_expr_async(&mut inner, one);
        self.both |= inner.both;
    }

    fn visit_expr_loop(&mut self, one: &'ast syn::ExprLoop) {
        let mut inner = Self::default();
        inner.visit_block(&one.body);
        self.end_loop(&inner, false);
    }

    fn visit_expr_while(&mut self, one: &'ast syn::ExprWhile) {
        let (mut inner, mut polls) = (Self::default(), false);
        inner.visit_block(&one.body);
        if let syn::Expr::Let(condition) = &*one.cond
            && let syn::Expr::Await(next) = &*condition.expr
            && let syn::Expr::MethodCall(call) = &*next.base
        {
            polls = call.method == "next";
        }
        self.end_loop(&inner, polls);
    }
}

/// Whether a file has a loop or a `select!` that polls the futures of a set and awaits something else.
fn keeps_futures_waiting(text: &str) -> Result<bool> {
    let mut waits = Waits::default();
    waits.visit_file(&syn::parse_file(text)?);
    Ok(SETS.iter().any(|set| text.contains(set)) && waits.both)
}

#[test]
fn loops_that_poll_futures_await_nothing_else() -> Result<()> {
    let mut wrong = Vec::new();
    for (_, folder) in CRATES {
        for path in files_below(&root().join(folder).join("src"), "rs")? {
            let text = fs::read_to_string(&path)?;
            if keeps_futures_waiting(&text).with_context(|| path.display().to_string())? {
                let hint = "spawn the futures in a JoinSet, or wait in an arm of its own";
                wrong.push(format!(
                    "{}: a loop that polls a set of futures awaits something else: {hint}",
                    path.display()
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn awaiting_loop_is_found() -> Result<()> {
    let text = |arm: &str| {
        format!(
            "use futures::stream::FuturesUnordered;
             async fn f() {{ loop {{ tokio::select! {{ Some(a) = running.next() => {{}} a = b() => {arm} }} }} }}"
        )
    };
    assert!(keeps_futures_waiting(&text("self.send(a).await?,"))?);
    assert!(keeps_futures_waiting(&text("self.done.reserve().await,"))?);
    assert!(!keeps_futures_waiting(&text("queue.push(a),"))?);
    assert!(!keeps_futures_waiting(
        &text("c.await,").replace("FuturesUnordered", "StreamExt")
    )?);
    let after = text("a,").replace("tokio::select!", "let a = tokio::select!");
    assert!(!keeps_futures_waiting(
        &after.replace(" } } }", " }; queue.push(a); } }")
    )?);
    assert!(keeps_futures_waiting(
        &after.replace(" } } }", " }; done.send(a).await; } }")
    )?);
    let each = |body: &str| {
        format!(
            "use futures::stream::FuturesOrdered; async fn f() {{ while let Some(a) = running.next().await {{ {body} }} }}"
        )
    };
    assert!(keeps_futures_waiting(&each("done.send(a).await;"))?);
    assert!(!keeps_futures_waiting(&each("done.try_send(a);"))?);
    Ok(())
}
