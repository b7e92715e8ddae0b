//! Circles: files that import each other, directly or through others.
//!
//! A file imports another one of its crate if it uses a name from there: by `use`, or by a path in the code.
//! A re-exported name (`pub use`) is imported from the re-exporting module and from the defining file; the
//! re-exporting module imports it only if its own code uses it. Declaring or naming a module is no import.
//!
//! Names from enclosing modules (`super`, and all above) do not count: from outside, a module and its parts
//! are one unit, and the parts share the names of the whole. A name from a sibling counts, even if the parent
//! re-exports it, and so does a name that a module uses from its parts.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure;
use crate::source::{Crate, crates};

/// Fewer imports between files would mean that the search is broken: there are twice as many.
const MIN_ARROWS: usize = 1000;

/// Files imported by each file, with the names used.
type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

#[test]
fn files_do_not_import_each_other() {
    let (mut found, mut circular, mut count) = (String::new(), 0, 0);
    for read in crates() {
        let arrows = arrows(&read);
        count += arrows.values().map(BTreeMap::len).sum::<usize>();
        let circles = circles(&arrows);
        circular += circles.len();
        found.extend(circles.iter().map(|circle| describe(circle, &arrows)));
    }
    figure("circles", circular);
    assert!(found.is_empty(), "files import each other:\n{found}");
    assert!(count > MIN_ARROWS, "{count} imports were found: the files were not read as they are written");
}

fn arrows(read: &Crate) -> Arrows {
    let mut arrows = Arrows::new();
    let mut add = |from: usize, path: &[String]| {
        for (to, name) in read.taken_from(from, path) {
            let (from_file, to_file) = (&read.modules[from].file, &read.modules[to].file);
            if from_file != to_file && !is_within(read, from, to_file) {
                let of = arrows.entry(from_file.clone()).or_default();
                of.entry(to_file.clone()).or_default().insert(name);
            }
        }
    };
    for (id, module) in read.modules.iter().enumerate() {
        for import in &module.imports {
            if !import.is_public || module.words.contains(&import.name) {
                add(id, &import.path);
            }
        }
        for path in paths(&module.words) {
            add(id, path.as_slice());
        }
    }
    arrows
}

/// Returns true if the module is nested in one of that file.
fn is_within(read: &Crate, module: usize, file: &str) -> bool {
    let mut above = read.modules[module].parent;
    while let Some(id) = above {
        if read.modules[id].file == file {
            return true;
        }
        above = read.modules[id].parent;
    }
    false
}

/// Returns paths of at least two names in the code.
fn paths(words: &[String]) -> Vec<Vec<String>> {
    let is_name = |at: usize| {
        words.get(at).is_some_and(|word| word.starts_with(|char: char| char.is_alphabetic() || char == '_'))
    };
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let begins = is_name(at) && (at == 0 || words[at - 1] != "::");
        let mut end = at + 1;
        while begins && words.get(end).is_some_and(|word| word == "::") && is_name(end + 1) {
            end += 2;
        }
        if end > at + 1 {
            found.push(words[at..end].iter().step_by(2).cloned().collect());
        }
        at = end;
    }
    found
}

/// Returns sets of several files, each of which is reachable from all others.
fn circles(arrows: &Arrows) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            let next = arrows.get(file).into_iter().flat_map(BTreeMap::keys);
            open.extend(next.filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let from: BTreeMap<&String, BTreeSet<String>> = arrows.keys().map(|file| (file, reached(file))).collect();
    let both = |one: &String, other: &String| {
        let has = |one, other| from.get(one).is_some_and(|reached| reached.contains(other));
        has(one, other) && has(other, one)
    };
    let circle_of = |file: &String| from[file].iter().filter(|other| both(file, other)).cloned().collect();
    arrows.keys().map(circle_of).filter(|circle: &Vec<String>| circle.len() > 1).collect()
}

fn describe(circle: &[String], arrows: &Arrows) -> String {
    let mut text = format!("{} files:\n", circle.len());
    for file in circle {
        for (to, names) in arrows[file].iter().filter(|(to, _)| circle.contains(to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text.push_str(&format!("  {file} -> {to}: {}\n", names.join(", ")));
        }
    }
    text
}

#[test]
fn a_circle_is_found_and_a_line_is_not() {
    let arrow = |to: &str| BTreeMap::from([(to.to_owned(), BTreeSet::from(["X".to_owned()]))]);
    let names = ["a", "b", "c", "d"];
    let mut arrows: Arrows =
        names.iter().zip(&names[1..]).map(|(from, to)| ((*from).to_owned(), arrow(to))).collect();
    assert!(circles(&arrows).is_empty());
    arrows.insert("d".to_owned(), arrow("b"));
    assert_eq!(circles(&arrows), BTreeSet::from([["b", "c", "d"].map(str::to_owned).to_vec()]));
}

#[test]
fn paths_of_the_code_are_read_whole() {
    let words = crate::source::words("let a = super::b::C::new(d::e, f.g::<H>(), ::i::j);");
    let found: Vec<String> = paths(&words).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["super::b::C::new", "d::e"]);
}
