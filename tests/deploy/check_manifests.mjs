// Checks rendered manifests and prints what is wrong with them, one line each:
//   check_manifests.mjs DIRECTORY FILE      DIRECTORY: where check_manifests.sh has installed the packages
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join} from 'node:path';
import {schemaChecker} from './schema.mjs';
import {checkSums} from './sums.mjs';

const [directory, file] = process.argv.slice(2);
const yaml = createRequire(join(directory, 'package.json'))('yaml');
const documents = yaml.parseAllDocuments(readFileSync(file, 'utf8')).map((d) => d.toJS());
const problems = [...schemaChecker(directory)(documents), ...checkSums(documents)];
for (const problem of problems) console.error(problem);
console.log(`${documents.length} documents, ${problems.length} problems`);
process.exit(problems.length ? 1 : 0);
