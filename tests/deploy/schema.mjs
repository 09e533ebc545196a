// Checks manifests against the types of Kubernetes 1.30, offline and strictly: TypeScript finds fields that do
// not exist (misspelt ones, or at the wrong depth) and wrong types; the JSON schemas know integers and formats.
//
//   const checkSchema = schemaChecker(directory);   // with node_modules, as check_manifests.sh makes it
//   checkSchema(documents)                          // -> problems, one line each
import {createRequire} from 'node:module';
import {existsSync} from 'node:fs';
import {join} from 'node:path';

const title = (document) => `${document.kind}/${document.metadata?.name}`;

// "apps/v1" and "v1" as kubernetes-types names them: apps/v1, core/v1; networking.k8s.io/v1 is networking/v1.
function typesModule({apiVersion}) {
  const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['core', apiVersion];
  return `kubernetes-types/${group.split('.')[0]}/${version}`;
}

export function schemaChecker(directory) {
  const require = createRequire(join(directory, 'package.json'));
  const ts = require('typescript');
  const options = {
    noEmit: true, strict: true, skipLibCheck: true, types: [],
    target: ts.ScriptTarget.ES2020, module: ts.ModuleKind.CommonJS,
    moduleResolution: ts.ModuleResolutionKind.Node10,
  };
  let previous;  // a program, whose files of types the next one takes over

  // Each document becomes a constant of its type, on a line of its own.
  function typeProblems(documents) {
    const path = join(directory, 'documents.ts');
    const source = documents.map((document, i) =>
      `export const d${i}: import("${typesModule(document)}").${document.kind} = ${JSON.stringify(document)};`)
      .join('\n');
    const host = ts.createCompilerHost(options);
    const {getSourceFile, fileExists, readFile} = host;
    host.fileExists = (name) => name === path || fileExists(name);
    host.readFile = (name) => (name === path ? source : readFile(name));
    host.getSourceFile = (name, ...rest) => (name === path
      ? ts.createSourceFile(name, source, options.target)
      : previous?.getSourceFile(name) ?? getSourceFile(name, ...rest));
    previous = ts.createProgram([path], options, host, previous);
    return ts.getPreEmitDiagnostics(previous).map((diagnostic) => {
      const text = ts.flattenDiagnosticMessageText(diagnostic.messageText, ' ').replace(/\s+/g, ' ');
      if (diagnostic.file?.fileName !== path) return `types: ${text}`;
      const {line} = diagnostic.file.getLineAndCharacterOfPosition(diagnostic.start);
      return `${title(documents[line])}: ${text}`;
    });
  }

  function valueProblems(document) {
    const path = `kubernetes-models/${document.apiVersion}/${document.kind}`;
    try {
      const Model = require(path)[document.kind];
      new Model(document).validate();
      return [];
    } catch (error) {
      return [`${title(document)}: ${String(error.message).replace(/\s+/g, ' ')}`];
    }
  }

  return (documents) => {
    const known = [];
    const problems = [];
    for (const document of documents) {
      const types = join(directory, 'node_modules', `${typesModule(document)}.d.ts`);
      if (existsSync(types)) known.push(document);
      else problems.push(`${title(document)}: there are no types of ${document.apiVersion}`);
    }
    return [...problems, ...typeProblems(known), ...known.flatMap(valueProblems)];
  };
}
