//! The modules of the workspace, read from their files without a compiler.
//!
//! Owns: words of a file, its modules, the names in their scope. Items for tests are left out.
//! Does not own: macros, whose expansions are not read: the workspace has four, and none creates an import.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of one crate; the first one is its root.
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
}

/// A module, in a separate file or inline.
#[derive(Default)]
pub(crate) struct Module {
    /// The file, relative to the root of the workspace.
    pub(crate) file: String,
    pub(crate) parent: Option<usize>,
    /// Submodules, by name.
    pub(crate) children: BTreeMap<String, usize>,
    /// Its imports.
    pub(crate) imports: Vec<Import>,
    /// All other words, without those of submodules.
    pub(crate) words: Vec<String>,
}

/// A name that a `use` declaration brings into scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    /// The name in this module; `*` for a glob import.
    pub(crate) name: String,
    /// The segments of the path.
    pub(crate) path: Vec<String>,
    /// True if the module re-exports the name.
    pub(crate) is_public: bool,
}

impl Module {
    /// Returns the import of that name.
    pub(crate) fn import(&self, name: &str) -> Option<&Import> {
        self.imports.iter().find(|import| import.name == name)
    }
}

/// Returns the crates of the workspace: libraries and programs.
pub(crate) fn crates() -> Vec<Crate> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, members) = manifest.split_once("members = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let mut crates = Vec::new();
    for member in members.split('"').skip(1).step_by(2) {
        let source = Path::new(member).join("src");
        let mut roots = vec![source.join("lib.rs"), source.join("main.rs")];
        if let Ok(programs) = fs::read_dir(root.join(&source).join("bin")) {
            roots.extend(programs.map(|entry| source.join("bin").join(entry.unwrap().file_name())));
        }
        for file in roots.into_iter().filter(|file| root.join(file).exists()) {
            let mut read = Crate { modules: Vec::new() };
            let text = fs::read_to_string(root.join(&file)).unwrap();
            let begin =
                Begin { file: file.to_str().unwrap().to_owned(), directory: source.clone(), parent: None };
            read.add(&root, begin, &words(&text));
            crates.push(read);
        }
    }
    assert!(!crates.is_empty(), "the workspace has crates");
    crates
}

/// A module to be read.
struct Begin {
    file: String,
    /// Directory of its submodules' files.
    directory: PathBuf,
    parent: Option<usize>,
}

impl Crate {
    /// Reads a module and all its submodules.
    fn add(&mut self, root: &Path, begin: Begin, words: &[String]) -> usize {
        let Begin { file, directory, parent } = begin;
        let id = self.modules.len();
        self.modules.push(Module { file: file.clone(), parent, ..Module::default() });
        let mut rest = words;
        while let Some(word) = rest.first() {
            if is_test_attribute(rest) {
                rest = &rest[item_end(rest)..];
                continue;
            }
            match word.as_str() {
                "use" => {
                    let end = rest.iter().position(|word| word == ";").unwrap();
                    let before = self.modules[id].words.last().map(String::as_str);
                    let is_public = matches!(before, Some("pub" | ")"));
                    let mut tree = &rest[1..end];
                    imports(&mut tree, &[], is_public, &mut self.modules[id].imports);
                    rest = &rest[end + 1..];
                }
                "mod" if rest.get(2).is_some_and(|word| word == ";") => {
                    let child = self.add_file(root, &directory, &rest[1], id);
                    self.modules[id].children.insert(rest[1].clone(), child);
                    rest = &rest[3..];
                }
                "mod" if rest.get(2).is_some_and(|word| word == "{") => {
                    let end = block_end(&rest[2..]) + 2;
                    let directory = directory.join(&rest[1]);
                    let begin = Begin { file: file.clone(), directory, parent: Some(id) };
                    let child = self.add(root, begin, &rest[3..end - 1]);
                    self.modules[id].children.insert(rest[1].clone(), child);
                    rest = &rest[end..];
                }
                word => {
                    self.modules[id].words.push(word.to_owned());
                    rest = &rest[1..];
                }
            }
        }
        id
    }

    fn add_file(&mut self, root: &Path, directory: &Path, name: &str, parent: usize) -> usize {
        let file = directory.join(format!("{name}.rs"));
        let text = fs::read_to_string(root.join(&file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (file, directory) = (file.to_str().unwrap().to_owned(), directory.join(name));
        self.add(root, Begin { file, directory, parent: Some(parent) }, &words(&text))
    }

    /// Returns the modules that a path uses a name from: those that re-export the name, and the one that
    /// defines it; each with the name. Empty for a name of another crate, and for a path to a module: naming
    /// a module uses nothing from it.
    pub(crate) fn taken_from(&self, from: usize, path: &[String]) -> Vec<(usize, String)> {
        let mut through = Vec::new();
        match self.find(from, path, true, &mut through) {
            Some(Place::Item(module, name)) => {
                // The first one is the import that the path itself begins with.
                through.retain(|(handing, _)| *handing != from);
                through.push((module, name));
                through
            }
            Some(Place::Module(_)) | None => Vec::new(),
        }
    }

    /// Follows a path. `through` collects the modules that re-export a name of it, each with the name.
    fn find(
        &self,
        from: usize,
        path: &[String],
        is_first: bool,
        through: &mut Vec<(usize, String)>,
    ) -> Option<Place> {
        let Some((segment, rest)) = path.split_first() else { return Some(Place::Module(from)) };
        let module = &self.modules[from];
        let next = match segment.as_str() {
            "crate" => Some(0),
            "self" => Some(from),
            "super" => module.parent,
            name => module.children.get(name).copied(),
        };
        if let Some(next) = next {
            return self.find(next, rest, false, through);
        }
        if let Some(import) = module.import(segment) {
            let step = (from, segment.clone());
            if through.contains(&step) {
                return None;
            }
            through.push(step);
            return match self.find(from, &import.path, true, through)? {
                Place::Module(module) => self.find(module, rest, false, through),
                item @ Place::Item(..) => Some(item),
            };
        }
        // A path that begins with none of the module's names leads to another crate.
        (!is_first).then(|| Place::Item(from, segment.clone()))
    }
}

enum Place {
    Module(usize),
    Item(usize, String),
}

/// Returns true if the words begin with `#[cfg(test)]`.
pub(crate) fn is_test_attribute(words: &[String]) -> bool {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    words.len() >= attribute.len() && words.iter().zip(attribute).all(|(word, wanted)| word == wanted)
}

/// Returns the number of words of the first item, including its attributes.
pub(crate) fn item_end(words: &[String]) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            ";" if depth == 0 => return at + 1,
            "{" if depth == 0 => return at + block_end(&words[at..]),
            _ => {}
        }
    }
    panic!("an item without an end");
}

/// Returns the number of words of the first block, including both braces.
pub(crate) fn block_end(words: &[String]) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    panic!("a block without an end");
}

/// Collects the imports of a `use` declaration.
fn imports(words: &mut &[String], prefix: &[String], is_public: bool, found: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    loop {
        match *words {
            [brace, rest @ ..] if brace == "{" => {
                *words = rest;
                while words.first().is_some_and(|word| word != "}") {
                    imports(words, &path, is_public, found);
                    if words.first().is_some_and(|word| word == ",") {
                        *words = &words[1..];
                    }
                }
                *words = words.get(1..).unwrap_or_default();
                return;
            }
            [colons, rest @ ..] if colons == "::" => *words = rest,
            [word, rest @ ..] if !matches!(word.as_str(), "," | "}" | "as") => {
                // `a::{self}` is `a`.
                if word != "self" || path.is_empty() {
                    path.push(word.clone());
                }
                *words = rest;
            }
            _ => break,
        }
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if let [word, alias, rest @ ..] = *words
        && word == "as"
    {
        name.clone_from(alias);
        *words = rest;
    }
    if path.last().is_some_and(|last| last == "*") {
        path.pop();
    }
    found.push(Import { name, path, is_public });
}

/// Returns words and punctuation of a Rust file, without comments and the content of literals.
pub(crate) fn words(text: &str) -> Vec<String> {
    numbered_words(text).into_iter().map(|(_line, word)| word).collect()
}

/// Returns the [`words`], each with its line, counted from 0.
pub(crate) fn numbered_words(text: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let (mut at, mut line, mut counted) = (0, 0, 0);
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    while let Some(&char) = chars.get(at) {
        let next = chars.get(at + 1).copied().unwrap_or_default();
        line += chars[counted..at].iter().filter(|char| **char == '\n').count();
        counted = at;
        match char {
            '/' if next == '/' => at = end_of(&chars, at, |char| char == '\n'),
            '/' if next == '*' => at = after_comment(&chars, at),
            '"' => at = after_string(&chars, at + 1),
            'r' | 'b' | 'c' if is_raw(&chars, at) => at = after_raw(&chars, at),
            'b' | 'c' if next == '"' => at = after_string(&chars, at + 2),
            '\'' if next == '\\' || chars.get(at + 2) == Some(&'\'') => {
                // The third character may itself be a quote.
                at = end_of(&chars, at + 3 - usize::from(next != '\\'), |char| char == '\'') + 1;
            }
            ':' if next == ':' => {
                words.push((line, "::".to_owned()));
                at += 2;
            }
            char if is_word(char) => {
                let end = end_of(&chars, at, |char| !is_word(char));
                words.push((line, chars[at..end].iter().collect()));
                at = end;
            }
            char => {
                if !char.is_whitespace() {
                    words.push((line, char.to_string()));
                }
                at += 1;
            }
        }
    }
    words
}

fn end_of(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&at| is_end(chars[at])).unwrap_or(chars.len())
}

fn after_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn after_string(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the number of letters before the delimiters of a raw string.
fn letters(chars: &[char], at: usize) -> usize {
    1 + usize::from(chars[at] != 'r')
}

fn is_raw(chars: &[char], at: usize) -> bool {
    let begin = at + letters(chars, at);
    let is_alone = at == 0 || !(chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    let quote = end_of(chars, begin, |char| char != '#');
    is_alone && chars.get(begin - 1) == Some(&'r') && chars.get(quote) == Some(&'"')
}

fn after_raw(chars: &[char], at: usize) -> usize {
    let begin = at + letters(chars, at);
    let quote = end_of(chars, begin, |char| char != '#');
    let marks = quote - begin;
    let is_end = |end: usize| {
        chars[end] == '"'
            && chars.get(end + 1..end + 1 + marks).is_some_and(|all| all.iter().all(|&char| char == '#'))
    };
    (quote + 1..chars.len()).find(|&end| is_end(end)).map_or(chars.len(), |end| end + 1 + marks)
}

#[test]
fn words_are_those_of_the_code() {
    let text = concat!(
        "use a::{b, c as d}; /* x /* y */ */ // z\n",
        "let e = 'f'; g(\"h \\\" i\", r#\"j \" k\"#, b'\\'', '\\\\', &'l m);",
    );
    let found = words(text).join(" ");
    assert_eq!(found, "use a :: { b , c as d } ; let e = ; g ( , , b , , & ' l m ) ;");
}

#[test]
fn an_import_is_found_in_its_tree() {
    let all = words("super::{a::{self, B, c as d}, e::*, f}");
    let (mut found, mut tree) = (Vec::new(), all.as_slice());
    imports(&mut tree, &[], false, &mut found);
    let found: Vec<String> =
        found.iter().map(|import| format!("{} = {}", import.name, import.path.join("::"))).collect();
    let expected = ["a = super::a", "B = super::a::B", "d = super::a::c", "* = super::e", "f = super::f"];
    assert_eq!(found, expected);
}
