import{A as n,O as p,b as e,l as r,t as i,w as a,x as o,z as t}from"./chunk-5DQ3Y4NJ.js";o();a();t();var d=document.getElementById("app");d&&e(n(p,{}),d);r().then(i);
